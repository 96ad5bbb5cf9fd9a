"""Where records come from: each source gives the same shape, `bronze.RECORD`."""
