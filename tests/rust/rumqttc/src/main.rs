//! Checks the features of rumqttc against a broker, with MQTT 3.1.1 and MQTT 5, and prints "ok".

use rumqttc::{v5, Event, LastWill, MqttOptions, Packet, QoS};
use std::collections::BTreeSet;
use std::sync::{
    atomic::{AtomicBool, Ordering},
    mpsc::{channel, Receiver, Sender},
    Arc,
};
use std::thread::{spawn, JoinHandle};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, PartialEq, Clone)]
struct Message {
    topic: String,
    payload: String,
    qos: u8,
    retained: bool,
}

fn message(topic: &str, payload: &str, qos: u8, retained: bool) -> Message {
    Message { topic: topic.into(), payload: payload.into(), qos, retained }
}

/// An event of a client other than a publication.
#[derive(Debug)]
enum Notice {
    Connected(bool),
    Granted(String),
    Taken,
}

/// The interface through which the scenarios use a client of either version.
trait Client {
    fn subscribe(&self, filter: &str, qos: u8);
    fn publish(&self, topic: &str, payload: &str, qos: u8, retain: bool);
    fn leave(self: Box<Self>);
    /// Drop the connection without a DISCONNECT packet.
    fn cut(self: Box<Self>);
    fn next(&self) -> Message;
}

/// The broker's address, and the client identifier, will and clean session flag of a connection.
struct Login<'a> {
    host: &'a str,
    port: u16,
    name: String,
    will: Option<Message>,
    clean: bool,
}

/// The event loop of one connection, in a thread of its own. It ends with the connection or when `stop` is set.
struct Line {
    messages: Receiver<Message>,
    notices: Receiver<Notice>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Line {
    fn notice(&self, what: &str) -> Notice {
        self.notices.recv_timeout(PATIENCE).expect(what)
    }
    fn granted(&self, qos: u8) {
        match self.notice("SUBACK") {
            Notice::Granted(code) => assert!(code.contains(["AtMostOnce", "AtLeastOnce", "ExactlyOnce"][qos as usize]), "{code}"),
            other => panic!("{other:?}"),
        }
    }
    fn taken(&self) {
        assert!(matches!(self.notice("PUBACK or PUBCOMP"), Notice::Taken));
    }
    fn connected(&self) -> bool {
        match self.notice("CONNACK") {
            Notice::Connected(resumed) => resumed,
            other => panic!("{other:?}"),
        }
    }
    fn cut(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// A client of one MQTT version. The library has types of equal names for both versions.
macro_rules! version {
    ($name:ident, $client:ty, $connection:ty, $event:path, $packet:ident, $qos:ty, $acks:pat, $topic:expr) => {
        struct $name {
            client: $client,
            line: Line,
        }

        impl $name {
            fn over(client: $client, mut connection: $connection) -> ($name, bool) {
                let (sender, messages): (Sender<Message>, _) = channel();
                let (notice_sender, notices) = channel();
                let stop = Arc::new(AtomicBool::new(false));
                let stopped = stop.clone();
                let thread = spawn(move || loop {
                    let event = connection.recv_timeout(Duration::from_millis(20));
                    if stopped.load(Ordering::Relaxed) {
                        return;
                    }
                    match event {
                        Ok(Ok($event($packet::ConnAck(ack)))) => notice_sender.send(Notice::Connected(ack.session_present)).unwrap(),
                        Ok(Ok($event($packet::SubAck(ack)))) => notice_sender.send(Notice::Granted(format!("{:?}", ack.return_codes))).unwrap(),
                        Ok(Ok($event($acks))) => notice_sender.send(Notice::Taken).unwrap(),
                        Ok(Ok($event($packet::Publish(one)))) => sender
                            .send(Message {
                                topic: $topic(&one.topic),
                                payload: String::from_utf8(one.payload.to_vec()).unwrap(),
                                qos: one.qos as u8,
                                retained: one.retain,
                            })
                            .unwrap(),
                        Ok(Ok(_)) => (),
                        Ok(Err(_)) => return,
                        Err(_) => (),
                    }
                });
                let line = Line { messages, notices, stop, thread };
                let resumed = line.connected();
                ($name { client, line }, resumed)
            }

            fn qos(level: u8) -> $qos {
                [<$qos>::AtMostOnce, <$qos>::AtLeastOnce, <$qos>::ExactlyOnce][level as usize]
            }
        }

        impl Client for $name {
            fn subscribe(&self, filter: &str, qos: u8) {
                self.client.subscribe(filter, Self::qos(qos)).unwrap();
                self.line.granted(qos);
            }
            fn publish(&self, topic: &str, payload: &str, qos: u8, retain: bool) {
                self.client.publish(topic, Self::qos(qos), retain, payload.as_bytes().to_vec()).unwrap();
                if qos > 0 {
                    self.line.taken();
                }
            }
            fn leave(self: Box<Self>) {
                self.client.disconnect().unwrap();
                self.line.thread.join().unwrap();
            }
            fn cut(self: Box<Self>) {
                self.line.cut();
            }
            fn next(&self) -> Message {
                self.line.messages.recv_timeout(PATIENCE).expect("a publication")
            }
        }
    };
}

use v5::mqttbytes::v5::Packet as Packet5;
version!(Client4, rumqttc::Client, rumqttc::Connection, Event::Incoming, Packet, QoS, Packet::PubAck(_) | Packet::PubComp(_), |topic: &String| topic
    .clone());
version!(
    Client5,
    v5::Client,
    v5::Connection,
    v5::Event::Incoming,
    Packet5,
    v5::mqttbytes::QoS,
    Packet5::PubAck(_) | Packet5::PubComp(_),
    |topic: &[u8]| String::from_utf8(topic.to_vec()).unwrap()
);

fn version4(login: Login) -> (Box<dyn Client>, bool) {
    let mut options = MqttOptions::new(login.name, login.host, login.port);
    options.set_clean_session(login.clean);
    if let Some(will) = login.will {
        options.set_last_will(LastWill::new(will.topic, will.payload, Client4::qos(will.qos), will.retained));
    }
    let (client, connection) = rumqttc::Client::new(options, 100);
    let (one, resumed) = Client4::over(client, connection);
    (Box::new(one), resumed)
}

fn version5(login: Login) -> (Box<dyn Client>, bool) {
    let mut options = v5::MqttOptions::new(login.name, login.host, login.port);
    options.set_clean_start(login.clean);
    let mut properties = v5::mqttbytes::v5::ConnectProperties::new();
    properties.session_expiry_interval = Some(if login.clean { 0 } else { 1000 });
    options.set_connect_properties(properties);
    if let Some(will) = login.will {
        options.set_last_will(v5::mqttbytes::v5::LastWill::new(will.topic, will.payload, Client5::qos(will.qos), will.retained, None));
    }
    let (client, connection) = v5::Client::new(options, 100);
    let (one, resumed) = Client5::over(client, connection);
    (Box::new(one), resumed)
}

fn scenarios(connect: fn(Login) -> (Box<dyn Client>, bool), host: &str, port: u16, prefix: &str) {
    let open = |name: &str, clean: bool, will: Option<Message>| connect(Login { host, port, name: format!("{prefix}{name}"), will, clean });
    let topic = |level: &str| format!("{prefix}/{level}");
    let (listener, _) = open("listener", true, None);
    let (writer, _) = open("writer", true, None);
    listener.subscribe(&topic("plain/#"), 2);
    for qos in 0..=2 {
        for number in 0..50 {
            writer.publish(&topic("plain/x"), &number.to_string(), qos, false);
        }
        for number in 0..50 {
            assert_eq!(listener.next(), message(&topic("plain/x"), &number.to_string(), qos, false));
        }
    }

    writer.publish(&topic("lamp"), "on", 1, true);
    let (late, _) = open("late", true, None);
    late.subscribe(&topic("+"), 1);
    assert_eq!(late.next(), message(&topic("lamp"), "on", 1, true));
    writer.publish(&topic("lamp"), "", 1, true);
    assert_eq!(late.next(), message(&topic("lamp"), "", 1, false));
    late.leave();

    listener.subscribe(&topic("will"), 1);
    let will = message(&topic("will"), "gone", 1, false);
    let (mortal, _) = open("mortal", true, Some(will.clone()));
    mortal.cut();
    assert_eq!(listener.next(), will);

    let (one, _) = open("one", true, None);
    let (two, _) = open("two", true, None);
    one.subscribe(&format!("$share/group/{}", topic("jobs")), 1);
    two.subscribe(&format!("$share/group/{}", topic("jobs")), 1);
    for number in 0..20 {
        writer.publish(&topic("jobs"), &number.to_string(), 1, false);
    }
    let jobs: BTreeSet<String> = (0..10).flat_map(|_| [one.next().payload, two.next().payload]).collect();
    assert_eq!(jobs.len(), 20, "{jobs:?}");
    one.leave();
    two.leave();

    let (sleeper, resumed) = open("sleeper", false, None);
    assert!(!resumed, "a first session is new");
    sleeper.subscribe(&topic("kept"), 2);
    sleeper.cut();
    writer.publish(&topic("kept"), "first", 1, false);
    writer.publish(&topic("kept"), "second", 2, false);
    let (sleeper, resumed) = open("sleeper", false, None);
    assert!(resumed, "the session is resumed");
    assert_eq!(sleeper.next(), message(&topic("kept"), "first", 1, false));
    assert_eq!(sleeper.next(), message(&topic("kept"), "second", 2, false));
    sleeper.leave();
    listener.leave();
    writer.leave();
}

/// Check that every property of an MQTT 5 publication reaches the subscriber.
fn properties(host: &str, port: u16, prefix: &str) {
    use v5::mqttbytes::v5::{PublishProperties, SubscribeProperties};
    let (client, mut connection) = v5::Client::new(v5::MqttOptions::new(format!("{prefix}p"), host, port), 100);
    let about = SubscribeProperties { id: Some(77), user_properties: vec![] };
    client.subscribe_with_properties(format!("{prefix}/#"), v5::mqttbytes::QoS::AtLeastOnce, about).unwrap();
    let user = vec![("a".to_string(), "1".to_string()), ("b".to_string(), "2".to_string()), ("a".to_string(), "3".to_string())];
    let sent = PublishProperties {
        payload_format_indicator: Some(1),
        message_expiry_interval: Some(30),
        response_topic: Some(format!("{prefix}/answer")),
        correlation_data: Some(vec![0, 1, 2].into()),
        user_properties: user.clone(),
        content_type: Some("text/plain".to_string()),
        ..Default::default()
    };
    for event in connection.iter() {
        match event.unwrap() {
            v5::Event::Incoming(Packet5::SubAck(_)) => client
                .publish_with_properties(format!("{prefix}/ask"), v5::mqttbytes::QoS::AtLeastOnce, false, "?", sent.clone())
                .unwrap(),
            v5::Event::Incoming(Packet5::Publish(one)) => {
                let got = one.properties.expect("properties");
                assert_eq!((&got.user_properties, got.payload_format_indicator, &got.subscription_identifiers), (&user, Some(1), &vec![77]));
                assert_eq!((&got.response_topic, &got.content_type), (&sent.response_topic, &sent.content_type));
                assert_eq!(got.correlation_data, sent.correlation_data);
                assert!(got.message_expiry_interval.unwrap() <= 30);
                return;
            }
            _ => (),
        }
    }
    panic!("the connection ended");
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (host, port, prefix) = (&arguments[1], arguments[2].parse().unwrap(), &arguments[3]);
    scenarios(version4, host, port, &format!("{prefix}v4"));
    scenarios(version5, host, port, &format!("{prefix}v5"));
    properties(host, port, &format!("{prefix}properties"));
    println!("ok");
}
