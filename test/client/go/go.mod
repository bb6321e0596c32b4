module ask_lines

go 1.19

require dthrottle v0.1.0

replace dthrottle => ../../../src/integration/go
