# A virtual host for a shop: a user, its permissions, exchanges, queues, a binding and policies.
terraform {
  required_providers {
    rabbitmq = {
      source = "cyrilgdn/rabbitmq"
    }
  }
}

variable "endpoint" {
  default = "http://127.0.0.1:15672"
}

variable "max_length" {
  default = 10000
}

provider "rabbitmq" {
  endpoint = var.endpoint
  username = "guest"
  password = "guest"
}

resource "rabbitmq_vhost" "shop" {
  name = "shop"
}

resource "rabbitmq_user" "worker" {
  name     = "worker"
  password = "secret"
  tags     = ["management"]
}

resource "rabbitmq_permissions" "worker" {
  user  = rabbitmq_user.worker.name
  vhost = rabbitmq_vhost.shop.name
  permissions {
    configure = "^worker-"
    write     = ".*"
    read      = ".*"
  }
}

# The creator of a virtual host has permissions there. Terraform keeps them with this resource.
resource "rabbitmq_permissions" "terraform" {
  user  = "guest"
  vhost = rabbitmq_vhost.shop.name
  permissions {
    configure = ".*"
    write     = ".*"
    read      = ".*"
  }
}

resource "rabbitmq_exchange" "events" {
  name  = "events"
  vhost = rabbitmq_permissions.terraform.vhost
  settings {
    type    = "topic"
    durable = true
    arguments = {
      "alternate-exchange" = "amq.fanout"
    }
  }
}

resource "rabbitmq_topic_permissions" "worker" {
  user  = rabbitmq_permissions.worker.user
  vhost = rabbitmq_permissions.worker.vhost
  permissions {
    exchange = rabbitmq_exchange.events.name
    write    = "^orders/"
    read     = ".*"
  }
}

resource "rabbitmq_queue" "orders" {
  name  = "orders"
  vhost = rabbitmq_permissions.terraform.vhost
  settings {
    durable = true
    arguments_json = jsonencode({
      "x-queue-type"     = "quorum"
      "x-delivery-limit" = 5
    })
  }
}

resource "rabbitmq_queue" "failed" {
  name  = "failed"
  vhost = rabbitmq_permissions.terraform.vhost
  settings {
    durable = true
    arguments = {
      "x-queue-type" = "stream"
    }
  }
}

resource "rabbitmq_binding" "orders" {
  vhost            = rabbitmq_exchange.events.vhost
  source           = rabbitmq_exchange.events.name
  destination      = rabbitmq_queue.orders.name
  destination_type = "queue"
  routing_key      = "orders/#"
}

resource "rabbitmq_binding" "failed" {
  vhost            = rabbitmq_exchange.events.vhost
  source           = "amq.headers"
  destination      = rabbitmq_queue.failed.name
  destination_type = "queue"
  routing_key      = "~ of 100 % a+b"
  arguments = {
    "x-match" = "all"
    "state"   = "failed"
  }
}

resource "rabbitmq_policy" "lengths" {
  name  = "lengths"
  vhost = rabbitmq_permissions.terraform.vhost
  policy {
    pattern  = "^orders"
    priority = 1
    apply_to = "queues"
    definition = {
      "max-length"           = var.max_length
      "overflow"             = "reject-publish"
      "dead-letter-exchange" = "amq.headers"
    }
  }
}

resource "rabbitmq_operator_policy" "expiry" {
  name  = "expiry"
  vhost = rabbitmq_permissions.terraform.vhost
  policy {
    pattern  = ".*"
    priority = 0
    apply_to = "queues"
    definition = {
      "max-length-bytes" = 1000000000
    }
  }
}
