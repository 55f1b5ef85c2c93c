"""The commands of `perdure`. `perdure.cli` knows them by name and loads the one that is used."""
