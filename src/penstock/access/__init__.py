"""Who may do what: principals and their grants, credentials, TLS, audit and encryption keys.

Nothing here serves requests. The broker authenticates a connection or a request once, and then asks the principal.
"""
