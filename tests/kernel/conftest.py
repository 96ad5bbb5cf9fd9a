"""What compares the kernels needs both."""

from tests.support.kernels import KERNELS

collect_ignore_glob = [] if "compiled" in KERNELS else ["test_[!c]*.py"]
