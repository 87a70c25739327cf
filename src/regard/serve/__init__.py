"""`regard serve`: models behind HTTP. `app` has the endpoints, `batching` the queue, `guard` who may ask."""
