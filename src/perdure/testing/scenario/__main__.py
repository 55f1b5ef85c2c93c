"""The server of `kennel.Kennel`."""

from perdure.testing.scenario.kennel import serve

if __name__ == "__main__":
    serve()
