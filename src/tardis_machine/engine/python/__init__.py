"""The engine in Python: the reference, whose bytes the compiled kernel must write as well."""
