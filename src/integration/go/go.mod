module dthrottle

go 1.19
