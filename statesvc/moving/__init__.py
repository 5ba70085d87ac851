"""Moving a store to another engine: read from where it is, written to where it goes, compared, handed over."""
