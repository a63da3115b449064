"""The configuration file and the command line: the language, the readers, the loading."""
