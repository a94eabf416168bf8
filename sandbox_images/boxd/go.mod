module sandkeeper/boxd

go 1.24
