"""Commands of the lakehouse as processes."""

import os
import subprocess
from pathlib import Path

from tests.lake.spark_settings import SMALL, ZONE
from tests.support.command import environment


def launch(*command: str | Path) -> subprocess.Popen[str]:
    """Start a command with a small Spark, in a process group of its own."""
    settings = ",".join(f"{name}={value}" for name, value in SMALL.items())
    return subprocess.Popen(
        [*command, "--spark", settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(TM_JARS_DIR=os.environ["TM_JARS_DIR"], TZ=ZONE),
        start_new_session=True,
    )
