"""The search: lists the legal strategies of a request, evaluates them in bulk, and ranks the best."""
