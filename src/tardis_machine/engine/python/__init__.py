"""The engine in Python: it decides what is right, the kernel does the same faster."""
