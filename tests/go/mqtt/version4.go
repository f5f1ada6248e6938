package main

import (
	"net"
	"net/url"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
)

type client4 struct {
	mqtt.Client
	incoming chan message
	line     net.Conn
}

func wait(token mqtt.Token, what string) {
	want(token.WaitTimeout(10*time.Second), what+" has an answer")
	must(token.Error(), what)
}

func (c *client4) subscribe(filter string, qos byte) {
	token := c.Subscribe(filter, qos, nil).(*mqtt.SubscribeToken)
	wait(token, "subscribe")
	for _, granted := range token.Result() { // For a shared subscription, the library keeps only the filter.
		want(granted == qos, "the QoS is granted")
	}
}

func (c *client4) publish(topic, payload string, qos byte, retain bool) {
	wait(c.Publish(topic, qos, retain, payload), "publish")
}

func (c *client4) received() <-chan message { return c.incoming }
func (c *client4) cut()                     { c.line.Close() }
func (c *client4) leave()                   { c.Disconnect(1000) }

func version4(address string) connect {
	return func(name string, clean bool, will *message) (client, bool) {
		one := &client4{incoming: make(chan message, 1000)}
		options := mqtt.NewClientOptions().AddBroker("tcp://" + address).SetClientID(name).SetCleanSession(clean).
			SetProtocolVersion(4).SetAutoReconnect(false).SetOrderMatters(true)
		options.SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) {
			one.incoming <- message{m.Topic(), string(m.Payload()), m.Qos(), m.Retained()}
		})
		options.SetCustomOpenConnectionFn(func(at *url.URL, _ mqtt.ClientOptions) (net.Conn, error) {
			line, err := net.Dial("tcp", at.Host)
			one.line = line
			return line, err
		})
		if will != nil {
			options.SetWill(will.topic, will.payload, will.qos, will.retained)
		}
		one.Client = mqtt.NewClient(options)
		token := one.Connect().(*mqtt.ConnectToken)
		wait(token, "connect")
		return one, token.SessionPresent()
	}
}
