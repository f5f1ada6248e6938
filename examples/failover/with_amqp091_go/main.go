// amqp091-go: a publisher and a consumer that continue at the other node after a failover.
//
//	go run . HOST:PORT HOST:PORT
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// connected returns a channel of a connection to the active node.
func connected() (*amqp.Connection, *amqp.Channel) {
	for {
		for _, address := range os.Args[1:] {
			connection, err := amqp.DialConfig("amqp://guest:guest@"+address+"/",
				amqp.Config{Heartbeat: 10 * time.Second, Locale: "en_US"})
			if err != nil {
				continue
			}
			channel, err := connection.Channel()
			if err == nil {
				_, err = channel.QueueDeclare("work", true, false, false, false, nil)
			}
			if err == nil {
				return connection, channel
			}
			connection.Close()
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// publish publishes a number, and waits for its confirm.
func publish(channel *amqp.Channel, number int) error {
	confirm, err := channel.PublishWithDeferredConfirm("", "work", true, false, amqp.Publishing{
		DeliveryMode: amqp.Persistent,
		Body:         []byte(strconv.Itoa(number)),
	})
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	confirmed, err := confirm.WaitContext(within)
	if err == nil && !confirmed {
		err = errors.New("the broker did not confirm the message")
	}
	return err
}

// publishAll publishes a number again if the connection was lost before its confirm.
func publishAll() {
	number := 0
	for {
		connection, channel := connected()
		err := channel.Confirm(false)
		for err == nil {
			if err = publish(channel, number); err == nil {
				fmt.Println("confirmed", number)
				number++
			}
		}
		connection.Close()
	}
}

// consumeAll prints and acknowledges numbers; a number may come twice.
func consumeAll() {
	for {
		connection, channel := connected()
		channel.Qos(100, 0, false)
		deliveries, err := channel.Consume("work", "", false, false, false, false, nil)
		if err == nil {
			for delivery := range deliveries {
				fmt.Println("received", string(delivery.Body))
				delivery.Ack(false)
			}
		}
		connection.Close()
	}
}

func main() {
	go publishAll()
	consumeAll()
}
