"""Reports about connections and about the server."""
