"""Reading streams as DataFrames."""
