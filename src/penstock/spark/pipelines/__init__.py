"""Ready pipelines: functions of DataFrames, configured by one YAML file."""
