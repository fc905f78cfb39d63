"""Three machines with etcd, Patroni and PostgreSQL, two nodes of Penstock, and everything that can be killed."""
