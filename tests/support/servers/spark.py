"""A standalone Spark cluster on free ports: a master, and workers that share nothing with us."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from pathlib import Path

import pyspark

from tardis_machine.lake.jars import java
from tests.support.ports import free_ports
from tests.support.servers.process import ServerProcess

SPARK_HOME = Path(pyspark.__file__).parent
_PROJECT = Path(__file__).parents[3]
_START_TIMEOUT_S = 120.0


def _launch(role: str, *arguments: str) -> list[str | Path]:
    return [
        *(java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
        *("-cp", f"{SPARK_HOME}/jars/*", f"org.apache.spark.deploy.{role}"),
        *("--host", "127.0.0.1", "--webui-port", "0", *arguments),
    ]


class SparkCluster:
    """A master and two workers, each with a folder and an environment of its own.

    Workers have the packages that the project needs, and not the project.
    """

    def __init__(self, folder: Path) -> None:
        port, *ports = free_ports(3)
        self.master = f"spark://127.0.0.1:{port}"
        self.folders = [folder / f"worker-{number}" for number in range(2)]
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("TM_", "PYSPARK", "PYTHON", "SPARK_", "VIRTUAL_ENV"))
        }
        # The last is what bin/spark-class would find out.
        clean |= {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SCALA_VERSION": "2.13",
        }
        self._log = folder / "cluster.log"
        folder.mkdir(parents=True, exist_ok=True)
        self._servers = [
            ServerProcess(
                _launch("master.Master", "--port", str(port)),
                port=port,
                log=self._log,
                environ=clean,
            )
        ]
        for own, number in zip(self.folders, ports, strict=True):
            own.mkdir()
            places = {"SPARK_LOCAL_DIRS": str(own / "local"), "HOME": str(own), "TMPDIR": str(own)}
            self._servers.append(
                ServerProcess(
                    _launch(
                        "worker.Worker",
                        *("--port", str(number), "--cores", "1", "--memory", "1g"),
                        *("--work-dir", str(own / "work"), self.master),
                    ),
                    port=number,
                    log=self._log,
                    environ={**clean, **places},
                )
            )

    def start(self) -> None:
        """Start it, and wait until both workers are known to the master."""
        for server in self._servers:
            server.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._log.read_text(errors="replace").count("Registering worker") < len(self.folders):
            if time.monotonic() > deadline:
                raise RuntimeError(self._log.read_text(errors="replace")[-3000:])
            time.sleep(0.05)

    def stop(self) -> None:
        for server in reversed(self._servers):
            server.stop()

    def log(self) -> str:
        return self._log.read_text(errors="replace")


def environment_archive(folder: Path) -> Path:
    """Pack an environment with the project as a wheel has it, as `venv-pack` would.

    What the project needs is not in it, since that is large: it is taken from where it is.
    """
    wheels = folder / "wheels"
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)],
        cwd=_PROJECT,
        check=True,
        capture_output=True,
    )
    [wheel] = wheels.glob("*.whl")
    env = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    [packages] = env.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as zipped:
        zipped.extractall(packages)
    # A path in a path file: the path files there, and so the project's own source, are not read.
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    archive = folder / "env.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(env, ".")
    shutil.rmtree(wheels)
    return archive
