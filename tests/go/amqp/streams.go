package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func read(connection *amqp.Connection, queue string, offset interface{}, count int) []amqp.Delivery {
	channel, err := connection.Channel()
	must(err, "channel")
	must(channel.Qos(3, 0, false), "qos")
	deliveries, err := channel.Consume(queue, "reader", false, false, false, false, amqp.Table{"x-stream-offset": offset})
	must(err, "consume")
	var rows []amqp.Delivery
	for len(rows) < count {
		one := next(deliveries, fmt.Sprint("row ", len(rows), " from ", offset))
		want(!one.Redelivered, "new")
		must(one.Ack(false), "ack")
		rows = append(rows, one)
	}
	must(channel.Close(), "close")
	return rows
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func printRow(one amqp.Delivery) {
	stamp, number := "-", "-"
	if !one.Timestamp.IsZero() {
		stamp = strconv.FormatInt(one.Timestamp.Unix(), 10)
	}
	if value, there := one.Headers["n"]; there {
		number = fmt.Sprint(value)
	}
	fmt.Println("row", one.Headers["x-stream-offset"], one.RoutingKey, hex.EncodeToString(one.Body), dash(one.ContentType),
		dash(one.CorrelationId), stamp, number)
}

// streams reads a stream, prints a row for each message in the format of tests/interop/test_toolchains.py, publishes a message,
// and prints "ok".
func streams(url, queue, key, number string) {
	count, err := strconv.Atoi(number)
	must(err, "count")
	connection, err := amqp.Dial(url)
	must(err, "dial")
	for _, one := range read(connection, queue, "first", count) {
		printRow(one)
	}
	for _, begin := range []struct {
		from interface{}
		want int
	}{{int64(2), 2}, {int32(2), 2}, {int16(2), 2}, {2, 2}, {"last", count - 1}, {[]byte("last"), count - 1}, {"1h", 0}, {time.Unix(1, 0), 0}} {
		one := read(connection, queue, begin.from, 1)[0]
		want(one.Headers["x-stream-offset"] == int64(begin.want), fmt.Sprintf("from %T %v", begin.from, begin.from))
	}
	channel, err := connection.Channel()
	must(err, "channel")
	_, err = channel.Consume(queue, "", false, false, false, false, nil)
	refusal, is := err.(*amqp.Error)
	want(is && refusal.Code == 406 && strings.Contains(refusal.Reason, "prefetch count is not set"), fmt.Sprint("406: ", err))

	channel, err = connection.Channel()
	must(err, "channel")
	must(channel.Confirm(false), "confirm")
	confirms := channel.NotifyPublish(make(chan amqp.Confirmation, 10))
	must(channel.Qos(1, 0, false), "qos")
	deliveries, err := channel.Consume(queue, "", false, false, false, false, amqp.Table{"x-stream-offset": "next"})
	must(err, "consume")
	body := make([]byte, 256)
	for index := range body {
		body[index] = byte(index)
	}
	must(channel.PublishWithContext(context.Background(), "amq.topic", key, false, false, amqp.Publishing{
		Body: body, ContentType: "text/x", CorrelationId: "c", Headers: amqp.Table{"n": "7"}}), "publish")
	want(next(confirms, "confirm").Ack, "acknowledged")
	own := next(deliveries, "its own message")
	want(own.Headers["x-stream-offset"] == int64(count) && bytes.Equal(own.Body, body), "the consumer gets the published message")
	must(connection.Close(), "close")
	fmt.Println("ok")
	os.Exit(0)
}
