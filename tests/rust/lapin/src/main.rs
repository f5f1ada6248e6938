//! Checks the features of lapin against a broker, and prints "ok".

use futures_lite::stream::StreamExt;
use lapin::{
    options::*, publisher_confirm::Confirmation, types::FieldTable, types::ShortString, BasicProperties, Connection, ConnectionProperties,
    ExchangeKind,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).expect("a URL");
    futures_lite::future::block_on(async {
        let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let mut arguments = FieldTable::default();
        arguments.insert(ShortString::from("x-max-length"), 1000.into());
        let queue = channel
            .queue_declare("", QueueDeclareOptions { exclusive: true, ..Default::default() }, arguments)
            .await?;
        let name = queue.name().as_str().to_string();
        channel
            .exchange_declare("lapin", ExchangeKind::Topic, ExchangeDeclareOptions { auto_delete: true, ..Default::default() }, FieldTable::default())
            .await?;
        channel.queue_bind(&name, "lapin", "a.*", QueueBindOptions::default(), FieldTable::default()).await?;
        for number in 0..100u8 {
            let confirm = channel
                .basic_publish("lapin", "a.b", BasicPublishOptions::default(), &[number], BasicProperties::default().with_priority(3))
                .await?
                .await?;
            assert!(matches!(confirm, Confirmation::Ack(None)), "{confirm:?}");
        }
        let returned = channel
            .basic_publish("lapin", "unbound", BasicPublishOptions { mandatory: true, ..Default::default() }, b"x", BasicProperties::default())
            .await?
            .await?;
        assert!(matches!(returned, Confirmation::Ack(Some(_))), "{returned:?}");
        channel.basic_qos(10, BasicQosOptions::default()).await?;
        let mut consumer = channel.basic_consume(&name, "tag", BasicConsumeOptions::default(), FieldTable::default()).await?;
        for number in 0..100u8 {
            let delivery = consumer.next().await.expect("a delivery")?;
            assert_eq!(delivery.data, vec![number]);
            delivery.ack(BasicAckOptions::default()).await?;
        }
        channel.queue_delete(&name, QueueDeleteOptions::default()).await?;
        assert!(consumer.next().await.is_none(), "the consumer is cancelled with its queue");
        let refused = channel.queue_declare("not-there", QueueDeclareOptions { passive: true, ..Default::default() }, FieldTable::default()).await;
        assert!(format!("{refused:?}").contains("NOT_FOUND"), "{refused:?}");
        connection.close(200, "bye").await?;
        println!("ok");
        Ok(())
    })
}
