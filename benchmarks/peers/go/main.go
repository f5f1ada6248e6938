// Command mochi serves MQTT on one address with the mochi-mqtt library, for benchmarks/peers.
//
// Settings that differ from the library's defaults: larger network buffers (2 KiB by default, a system call per twenty
// messages), a longer queue per client (by default it drops QoS 0 beyond 8,192 messages), the largest window of
// unacknowledged messages, no $SYS messages, log of errors only.
package main

import (
	"flag"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"syscall"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
)

func main() {
	address := flag.String("address", "127.0.0.1:1883", "where to listen")
	version := flag.Bool("version", false, "print the library's version and end")
	flag.Parse()
	if *version {
		fmt.Println(mqtt.Version)
		return
	}
	if err := serve(*address); err != nil {
		fmt.Fprintln(os.Stderr, "mochi:", err)
		os.Exit(1)
	}
}

func serve(address string) error {
	capabilities := mqtt.NewDefaultServerCapabilities()
	capabilities.MaximumClientWritesPending = 1 << 17
	capabilities.ReceiveMaximum = math.MaxUint16
	capabilities.MaximumInflight = math.MaxUint16
	server := mqtt.New(&mqtt.Options{
		Capabilities:             capabilities,
		ClientNetReadBufferSize:  64 << 10,
		ClientNetWriteBufferSize: 64 << 10,
		SysTopicResendInterval:   3600,
		Logger:                   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err := server.AddHook(new(auth.AllowHook), nil); err != nil {
		return err
	}
	if err := server.AddListener(listeners.NewTCP(listeners.Config{ID: "tcp", Address: address})); err != nil {
		return err
	}
	if err := server.Serve(); err != nil {
		return err
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	<-ended
	return server.Close()
}
