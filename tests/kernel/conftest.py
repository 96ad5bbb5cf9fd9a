"""What compares the kernels needs both."""

from tests.kernels import KERNELS

collect_ignore = [] if "compiled" in KERNELS else ["test_bronze.py", "test_emitter.py"]
