"""How many more conversations this process can serve, from what is measured, and how a balancer is told."""
