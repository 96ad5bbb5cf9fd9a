"""Where envelopes go from Spark besides the tables: the buses, as the server's publisher does."""
