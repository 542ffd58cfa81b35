"""Where a store's objects are kept: a directory or an object store, encrypted or not."""
