"""Writing DataFrames into streams."""
