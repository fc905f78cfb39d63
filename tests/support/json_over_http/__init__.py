"""The JSON of the HTTP routes from the side of a client: what is pushed, leased and asked comes back as it was.

The SDK carries frames over HTTP. This client of the JSON routes is for tests: it holds them to the same promises.
"""
