"""The lakehouse spine: normalized events as Bronze and Silver Delta tables, on Spark."""
