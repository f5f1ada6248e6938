package main

import (
	"context"
	"fmt"
	"net"

	"github.com/eclipse/paho.golang/paho"
)

type client5 struct {
	*paho.Client
	incoming chan message
	whole    chan *paho.Publish
	line     net.Conn
}

func (c *client5) subscribe(filter string, qos byte) {
	answer, err := c.Subscribe(context.Background(), &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: filter, QoS: qos}}})
	must(err, "subscribe")
	want(answer.Reasons[0] == qos, "the QoS is granted")
}

func (c *client5) publish(topic, payload string, qos byte, retain bool) {
	_, err := c.Publish(context.Background(), &paho.Publish{Topic: topic, Payload: []byte(payload), QoS: qos, Retain: retain})
	must(err, "publish")
}

func (c *client5) received() <-chan message { return c.incoming }
func (c *client5) cut()                     { c.line.Close() }
func (c *client5) leave()                   { must(c.Disconnect(&paho.Disconnect{}), "disconnect") }

func open5(address string, login *paho.Connect) (*client5, *paho.Connack) {
	line, err := net.Dial("tcp", address)
	must(err, "dial")
	one := &client5{incoming: make(chan message, 1000), whole: make(chan *paho.Publish, 1000), line: line}
	one.Client = paho.NewClient(paho.ClientConfig{Conn: line, ClientID: login.ClientID, OnPublishReceived: []func(paho.PublishReceived) (bool, error){
		func(got paho.PublishReceived) (bool, error) {
			one.incoming <- message{got.Packet.Topic, string(got.Packet.Payload), got.Packet.QoS, got.Packet.Retain}
			one.whole <- got.Packet
			return true, nil
		}}})
	answer, err := one.Connect(context.Background(), login)
	must(err, "connect")
	return one, answer
}

func version5(address string) connect {
	return func(name string, clean bool, will *message) (client, bool) {
		login := &paho.Connect{ClientID: name, CleanStart: clean, KeepAlive: 60}
		if !clean {
			kept := uint32(1000)
			login.Properties = &paho.ConnectProperties{SessionExpiryInterval: &kept, RequestProblemInfo: true}
		}
		if will != nil {
			login.WillMessage = &paho.WillMessage{Topic: will.topic, Payload: []byte(will.payload), QoS: will.qos, Retain: will.retained}
			login.WillProperties = &paho.WillProperties{}
		}
		one, answer := open5(address, login)
		return one, answer.SessionPresent
	}
}

// properties checks that every property of an MQTT 5 publication reaches the subscriber.
func properties(address, prefix string) {
	one, answer := open5(address, &paho.Connect{CleanStart: true, KeepAlive: 60})
	want(answer.Properties.AssignedClientID != "", "a client without an identifier is given one")
	number := 77
	granted, err := one.Subscribe(context.Background(), &paho.Subscribe{
		Properties:    &paho.SubscribeProperties{SubscriptionIdentifier: &number},
		Subscriptions: []paho.SubscribeOptions{{Topic: prefix + "/#", QoS: 1, RetainAsPublished: true}}})
	must(err, "subscribe")
	want(granted.Reasons[0] == 1, "granted")
	text, seconds := byte(1), uint32(30)
	sent := &paho.PublishProperties{CorrelationData: []byte{0, 1, 2}, ContentType: "text/plain", ResponseTopic: prefix + "/answer",
		PayloadFormat: &text, MessageExpiry: &seconds, User: paho.UserProperties{{Key: "a", Value: "1"}, {Key: "b", Value: "2"}, {Key: "a", Value: "3"}}}
	_, err = one.Publish(context.Background(), &paho.Publish{Topic: prefix + "/ask", Payload: []byte("?"), QoS: 1, Properties: sent})
	must(err, "publish")
	got := next(one.whole, "its own publication").Properties
	want(string(got.CorrelationData) == "\x00\x01\x02" && got.ContentType == "text/plain" && got.ResponseTopic == prefix+"/answer", "properties")
	want(*got.PayloadFormat == 1 && *got.MessageExpiry <= 30 && *got.SubscriptionIdentifier == 77, "numbers")
	want(fmt.Sprint(got.User) == fmt.Sprint(sent.User), fmt.Sprint("user properties: ", got.User))
	parent, err := one.Publish(context.Background(), &paho.Publish{Topic: prefix, Payload: []byte("?"), QoS: 1})
	must(err, "publish to the parent")
	want(parent.ReasonCode == 0, "a/# matches a")
	unmatched, err := one.Publish(context.Background(), &paho.Publish{Topic: prefix + "-unmatched", QoS: 1})
	must(err, "publish without a subscriber")
	want(unmatched.ReasonCode == 0x10, fmt.Sprint("no matching subscribers: ", unmatched.ReasonCode))
	one.leave()
}
