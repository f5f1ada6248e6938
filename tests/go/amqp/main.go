// Checks the features of amqp091-go against a broker: prints "ok", or the first failed check and exits with code 1.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func must(err error, what string) {
	if err != nil {
		fmt.Println(what+":", err)
		os.Exit(1)
	}
}

func want(truth bool, what string) {
	if !truth {
		fmt.Println("check failed:", what)
		os.Exit(1)
	}
}

func next[T any](from <-chan T, what string) T {
	select {
	case one := <-from:
		return one
	case <-time.After(10 * time.Second):
		fmt.Println("nothing arrived within 10 s:", what)
		os.Exit(1)
		panic("unreachable")
	}
}

func main() {
	if os.Args[1] == "streams" {
		streams(os.Args[2], os.Args[3], os.Args[4], os.Args[5])
	}
	url := os.Args[1]
	_, err := amqp.Dial(os.Args[2])
	want(err == amqp.ErrCredentials, fmt.Sprint("wrong credentials give ErrCredentials: ", err))

	connection, err := amqp.Dial(url)
	must(err, "dial")
	channel, err := connection.Channel()
	must(err, "channel")
	must(channel.Confirm(false), "confirm")
	confirms := channel.NotifyPublish(make(chan amqp.Confirmation, 10))
	returns := channel.NotifyReturn(make(chan amqp.Return, 10))
	cancels := channel.NotifyCancel(make(chan string, 10))
	ctx := context.Background()

	queue, err := channel.QueueDeclare("", false, true, true, false, amqp.Table{"x-max-priority": int32(5)})
	must(err, "declare")
	must(channel.ExchangeDeclare("go-topic", "topic", false, true, false, false, nil), "exchange")
	must(channel.QueueBind(queue.Name, "go.#", "go-topic", false, nil), "bind")

	for n := 0; n < 100; n++ {
		must(channel.PublishWithContext(ctx, "go-topic", "go.key", true, false, amqp.Publishing{
			Body: []byte{byte(n)}, Headers: amqp.Table{"n": int64(n), "list": []interface{}{"a", true, 1.5}}, Timestamp: time.Unix(1700000000, 0)}), "publish")
		want(next(confirms, "confirm").Ack, "acknowledged")
	}
	must(channel.PublishWithContext(ctx, "go-topic", "unbound", true, false, amqp.Publishing{Body: []byte("x")}), "publish")
	want(next(returns, "return").ReplyCode == amqp.NoRoute, "returned")
	want(next(confirms, "confirm").Ack, "acknowledged")

	must(channel.Qos(10, 0, false), "qos")
	deliveries, err := channel.Consume(queue.Name, "tag", false, false, false, false, amqp.Table{"x-priority": int32(3)})
	must(err, "consume")
	for n := 0; n < 100; n++ {
		one := next(deliveries, "delivery")
		want(one.Body[0] == byte(n) && one.Headers["n"] == int64(n) && !one.Redelivered, "in order")
		if n == 50 {
			must(one.Nack(false, true), "nack")
			again := next(deliveries, "redelivery")
			for again.Body[0] != 50 {
				must(again.Nack(false, true), "nack")
				again = next(deliveries, "redelivery")
			}
			want(again.Redelivered, "redelivered")
			must(again.Ack(false), "ack")
			break
		}
		must(one.Ack(false), "ack")
	}
	_, err = channel.QueueDelete(queue.Name, false, false, false)
	must(err, "delete")
	want(next(cancels, "cancel") == "tag", "cancelled")

	replies, err := channel.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	must(err, "replies")
	rpc, err := channel.QueueDeclare("", false, true, true, false, nil)
	must(err, "declare")
	must(channel.PublishWithContext(ctx, "", rpc.Name, false, false, amqp.Publishing{ReplyTo: "amq.rabbitmq.reply-to", CorrelationId: "7"}), "ask")
	next(confirms, "confirm")
	request, ok, err := channel.Get(rpc.Name, true)
	must(err, "get")
	want(ok, "request")
	must(channel.PublishWithContext(ctx, "", request.ReplyTo, false, false, amqp.Publishing{CorrelationId: request.CorrelationId}), "answer")
	want(next(replies, "reply").CorrelationId == "7", "answered")

	closed := channel.NotifyClose(make(chan *amqp.Error, 1))
	_, err = channel.QueueDeclarePassive("not-there", false, false, false, false, nil)
	refusal, is := err.(*amqp.Error)
	want(is && refusal.Code == amqp.NotFound && !refusal.Server == false, fmt.Sprint("404: ", err))
	want(next(closed, "close").Code == amqp.NotFound, "closed")

	channel, err = connection.Channel()
	must(err, "channel")
	must(channel.Tx(), "tx")
	other, err := channel.QueueDeclare("", false, true, true, false, nil)
	must(err, "declare")
	must(channel.PublishWithContext(ctx, "", other.Name, false, false, amqp.Publishing{Body: []byte("x")}), "publish")
	must(channel.TxRollback(), "rollback")
	must(channel.PublishWithContext(ctx, "", other.Name, false, false, amqp.Publishing{Body: []byte("y")}), "publish")
	must(channel.TxCommit(), "commit")
	one, ok, err := channel.Get(other.Name, true)
	must(err, "get")
	want(ok && string(one.Body) == "y", "committed")
	must(connection.Close(), "close")
	fmt.Println("ok")
}
