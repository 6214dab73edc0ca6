// A chat from Go, streamed: go run . MODEL PROMPT
package main

// #cgo pkg-config: welte
// #include <stdlib.h>
// #include <welte.h>
import "C"

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"unsafe"
)

func check(what string, code C.welte_code) {
	if code != C.WELTE_OK {
		fmt.Fprintf(os.Stderr, "%s: %s\n", what, C.GoString(C.welte_last_error()))
		os.Exit(1)
	}
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: go run . MODEL PROMPT")
		os.Exit(2)
	}
	// Errors belong to a thread, and a goroutine may move between threads.
	runtime.LockOSThread()
	path, options := C.CString(os.Args[1]), C.CString(`{"context": 512}`)
	defer C.free(unsafe.Pointer(path))
	defer C.free(unsafe.Pointer(options))
	var model *C.welte_model
	check("load", C.welte_model_load(path, options, nil, nil, &model))
	defer C.welte_model_free(model)

	request, _ := json.Marshal(map[string]any{
		"messages":    []map[string]string{{"role": "user", "content": os.Args[2]}},
		"max_tokens":  40,
		"temperature": 0,
	})
	endpoint, body := C.CString("/v1/chat/completions"), C.CString(string(request))
	defer C.free(unsafe.Pointer(endpoint))
	defer C.free(unsafe.Pointer(body))
	var stream *C.welte_stream
	check("stream", C.welte_stream_open(model, endpoint, body, &stream))
	defer C.welte_stream_free(stream)
	for {
		var event *C.char
		code := C.welte_stream_next(stream, &event)
		if code == C.WELTE_END {
			break
		}
		check("next", code)
		var chunk struct {
			Choices []struct {
				Delta struct{ Content string }
			}
		}
		if err := json.Unmarshal([]byte(C.GoString(event)), &chunk); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		C.welte_string_free(event)
		for _, choice := range chunk.Choices {
			fmt.Print(choice.Delta.Content)
		}
	}
	fmt.Println()
}
