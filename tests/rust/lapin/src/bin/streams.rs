//! Reads a stream with lapin, prints a row for each message in the format of tests/interop/test_toolchains.py, publishes a message,
//! and prints "ok".

use futures_lite::stream::StreamExt;
use lapin::{
    message::Delivery, options::*, types::AMQPValue, types::FieldTable, types::ShortString, BasicProperties, Channel, Connection,
    ConnectionProperties,
};

type Failure = Box<dyn std::error::Error>;

async fn read(connection: &Connection, queue: &str, offset: AMQPValue, count: usize) -> Result<Vec<Delivery>, Failure> {
    let channel: Channel = connection.create_channel().await?;
    channel.basic_qos(3, BasicQosOptions::default()).await?;
    let mut arguments = FieldTable::default();
    arguments.insert(ShortString::from("x-stream-offset"), offset);
    let mut consumer = channel.basic_consume(queue, "reader", BasicConsumeOptions::default(), arguments).await?;
    let mut rows = Vec::new();
    while rows.len() < count {
        let delivery = consumer.next().await.expect("a delivery")?;
        assert!(!delivery.redelivered);
        delivery.ack(BasicAckOptions::default()).await?;
        rows.push(delivery);
    }
    channel.close(200, "bye").await?;
    Ok(rows)
}

fn header(delivery: &Delivery, name: &str) -> Option<AMQPValue> {
    delivery.properties.headers().as_ref().and_then(|table| table.inner().get(name).cloned())
}

fn offset(delivery: &Delivery) -> i64 {
    match header(delivery, "x-stream-offset") {
        Some(AMQPValue::LongLongInt(number)) => number,
        other => panic!("x-stream-offset is {other:?}"),
    }
}

fn print_row(delivery: &Delivery) {
    let dash = || "-".to_string();
    let properties = &delivery.properties;
    let number = match header(delivery, "n") {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        Some(AMQPValue::LongInt(number)) => number.to_string(),
        None => dash(),
        other => panic!("n is {other:?}"),
    };
    println!(
        "row {} {} {} {} {} {} {}",
        offset(delivery),
        delivery.routing_key.as_str(),
        delivery.data.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
        properties.content_type().as_ref().map(|text| text.to_string()).unwrap_or_else(dash),
        properties.correlation_id().as_ref().map(|text| text.to_string()).unwrap_or_else(dash),
        properties.timestamp().map(|seconds| seconds.to_string()).unwrap_or_else(dash),
        number
    );
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().collect();
    let (url, queue, key, count) = (&words[1], &words[2], &words[3], words[4].parse::<usize>()?);
    futures_lite::future::block_on(async {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        for delivery in read(&connection, queue, AMQPValue::LongString("first".into()), count).await? {
            print_row(&delivery);
        }
        let last = count as i64 - 1;
        let begin = [
            (AMQPValue::LongLongInt(2), 2),
            (AMQPValue::LongInt(2), 2),
            (AMQPValue::LongString("last".into()), last),
            (AMQPValue::LongString("1h".into()), 0),
            (AMQPValue::Timestamp(1), 0),
        ];
        for (from, expected) in begin {
            assert_eq!(offset(&read(&connection, queue, from.clone(), 1).await?[0]), expected, "{from:?}");
        }
        let channel = connection.create_channel().await?;
        let refused = channel.basic_consume(queue, "", BasicConsumeOptions::default(), FieldTable::default()).await;
        assert!(format!("{refused:?}").contains("prefetch count is not set"), "{refused:?}");

        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        channel.basic_qos(1, BasicQosOptions::default()).await?;
        let mut consumer = channel.basic_consume(queue, "next", BasicConsumeOptions::default(), FieldTable::default()).await?;
        let mut headers = FieldTable::default();
        headers.insert(ShortString::from("n"), AMQPValue::LongString("7".into()));
        let properties =
            BasicProperties::default().with_content_type("text/x".into()).with_correlation_id("c".into()).with_headers(headers);
        let body: Vec<u8> = (0..=255).collect();
        channel.basic_publish("amq.topic", key, BasicPublishOptions::default(), &body, properties).await?.await?;
        let own = consumer.next().await.expect("a delivery")?;
        assert!(offset(&own) == count as i64 && own.data == body, "the consumer gets the published message");
        connection.close(200, "bye").await?;
        println!("ok");
        Ok(())
    })
}
