package com.rabbitmq.client.test;

import com.rabbitmq.client.ConnectionFactory;

/** The factory whose connections lead to the broker of the system property trellis.port. */
public class LocalFactory extends ConnectionFactory {
    public static final int PORT = Integer.getInteger("trellis.port");

    public LocalFactory() {
        setPort(PORT);
    }
}
