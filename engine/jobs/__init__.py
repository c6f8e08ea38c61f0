"""What a Submit becomes, one module per kind: a job makes requests for the scheduler and tells what they bring."""
