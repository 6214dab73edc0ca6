module welte.example/chat

go 1.19
