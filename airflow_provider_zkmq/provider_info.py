"""What Airflow reads about this provider, without importing any of its classes."""

from __future__ import annotations

from typing import Any

_INTEGRATION = "ZooKeeper queue (zkmq)"
_TEXT, _NUMBER = ({"type": [kind, "null"]} for kind in ("string", "number"))
_NO: dict[str, Any] = {"type": ["boolean", "null"], "default": False}


def _option(kind: str, default: str, description: str) -> dict[str, Any]:
    return {"description": description, "version_added": "0.1.0", "type": kind, "example": None, "default": default}


#: The options of the section ``[zkmq]``, which `hooks.settings` reads.
_OPTIONS = {
    "archive_directory": _option(
        "string", "", "Folder of the archive, where neither the maintenance DAG nor the environment says another."
    ),
    "dead_letters_shown": _option(
        "integer", "5", "How many dead letters ZkmqDeadLetterNotifier tells of where it is given no number."
    ),
    "stats": _option("boolean", "True", "Whether tasks of Airflow send the metrics zkmq.* to Airflow's stats."),
}
#: The extra fields of the connection form, by the names that `connection_options` reads: schema, label, description.
#: Times have no defaults: the form writes them into the connection, and queue files are refused with any time-out.
_FIELDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "root": (_TEXT | {"default": "/zkmq"}, "Root", "The znode under which the queues live."),
    "queue": (_TEXT, "Queue", "The queue used where none is named; empty: queue."),
    "tls": (_NO, "Use TLS", "Speak TLS to ZooKeeper's secure port; a file below implies it."),
    "tls_ca": (_TEXT, "TLS: CA file", "PEM file of those who sign the servers' certificates; nobody else is trusted."),
    "tls_cert": (_TEXT, "TLS: certificate file", "PEM file of the client's certificate, which is its identity."),
    "tls_key": (_TEXT, "TLS: key file", "PEM file of the client's private key."),
    "tls_key_password": (_TEXT | {"format": "password"}, "TLS: key password", "Opens the private key."),
    "allow_open": (
        _NO,
        "Allow open znodes",
        "With credentials: use what is there already, too, although anyone may use it.",
    ),
    "session_timeout": (_NUMBER, "Session timeout", "Seconds after which a lost session ends; empty: 10."),
    "connect_timeout": (_NUMBER, "Connect timeout", "Seconds to wait for the first answer; empty: 10."),
    "request_timeout": (_NUMBER, "Request timeout", "Seconds to wait for each answer; empty: 30."),
}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata in the form of Airflow's ``provider_info.schema.json``."""
    fields = {
        name: {"label": label, "description": text, "schema": schema} for name, (schema, label, text) in _FIELDS.items()
    }
    return {
        "package-name": "airflow-provider-zkmq",
        "name": _INTEGRATION,
        "description": "A durable task queue on `Apache ZooKeeper <https://zookeeper.apache.org/>`__.\n",
        "integrations": [
            {"integration-name": _INTEGRATION, "external-doc-url": "https://zookeeper.apache.org/", "tags": ["service"]}
        ],
        "hooks": [_modules("hooks")],
        "operators": [
            _modules("operators", "zkmq", "enqueuing", "claiming", "leases", "settling", "export_import", "task_group")
        ],
        "sensors": [_modules("sensors")],
        "triggers": [_modules("triggers", "zkmq", "asset_watcher", "leases")],
        "notifications": ["airflow_provider_zkmq.notifications.dead_letters.ZkmqDeadLetterNotifier"],
        "plugins": [{"name": "zkmq", "plugin-class": "airflow_provider_zkmq.plugins.zkmq.ZkmqPlugin"}],
        "extra-links": [
            "airflow_provider_zkmq.hooks.task_instance.QueueLink",
            "airflow_provider_zkmq.hooks.task_instance.TaskLink",
        ],
        "cli": ["airflow_provider_zkmq.commands.definition.get_zkmq_cli_commands"],
        "config": {"zkmq": {"description": "Queues on ZooKeeper.", "options": _OPTIONS}},
        # Airflow imports it, and knows by its exception where the common messaging provider is not installed.
        "queues": ["airflow_provider_zkmq.queues.zkmq.ZkmqMessageQueueProvider"],
        "asset-uris": [
            {
                "schemes": ["zkmq"],
                "handler": "airflow_provider_zkmq.assets.zkmq.sanitize_uri",
                "factory": "airflow_provider_zkmq.assets.zkmq.create_asset",
                "to_openlineage_converter": "airflow_provider_zkmq.assets.zkmq.convert_asset_to_openlineage",
            }
        ],
        "task-decorators": [{"name": "zkmq", "class-name": "airflow_provider_zkmq.decorators.zkmq.zkmq_task"}],
        "connection-types": [
            {
                "connection-type": "zkmq",
                "hook-class-name": "airflow_provider_zkmq.hooks.zkmq.ZkmqHook",
                "hook-name": _INTEGRATION,
                "conn-fields": fields,
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "extra"],
                    "relabeling": {
                        "host": "Hosts",
                        "port": "Port (0: each host has its own)",
                        "login": "User (digest)",
                    },
                    # Airflow's Test button posts 0 for an empty port and is refused by Airflow's own API, since nothing
                    # is not 0: a form that is filled like this one, or says 0 itself, passes.
                    "placeholders": {"host": "zk1,zk2,zk3", "port": "2181"},
                },
            }
        ],
    }


def _modules(kind: str, *names: str) -> dict[str, Any]:
    modules = [f"airflow_provider_zkmq.{kind}.{name}" for name in names or ("zkmq",)]
    return {"integration-name": _INTEGRATION, "python-modules": modules}
