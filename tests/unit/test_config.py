"""Settings: where they come from, which one wins, and what is said about an unfit one."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from trunkline import Gateway, Router
from trunkline.config import FILES, MockWorkerSettings, ServeSettings, SettingsError

WORKERS = {"workers": ("http://a:1",)}
URL_RANGE = (
    "a URL, http[s]://host[:port][/prefix] or unix:/path[:/prefix] "
    "[#engine=vllm|sglang|trtllm|tgi][&rank=N][&events=tcp://host:port][&replay=tcp://host:port][&pool=NAME]"
)


def test_flags_win_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('workers = ["http://a:1"]\nport = 1\nthreads = 1\nreplicas = 1\n')
    environment = {"TRUNKLINE_PORT": "2", "TRUNKLINE_THREADS": "2", "PORT": "9", "TRUNKLINE_CONFIG": str(file)}
    settings, sources = ServeSettings.load(flags={"port": "3"}, environment=environment)
    assert (settings.port, settings.threads, settings.replicas, settings.policy) == (3, 2, 1, "kv_aware")
    assert settings.workers == ("http://a:1",)
    wanted = {"port": "command line", "threads": "environment", "replicas": str(file), "policy": "default"}
    assert {key: sources[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", 'workers = ["http://a:1", "http://b:1/v"]\nannotate = false\nprobe_interval_s = 0.5\n'),
        ("a.yaml", "workers: [http://a:1, http://b:1/v]\nannotate: false\nprobe_interval_s: 0.5\n"),
        ("a.yml", 'workers: "http://a:1 http://b:1/v"\nannotate: "false"\nprobe_interval_s: "0.5"\n'),
    ],
)
def test_files_are_toml_or_yaml(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    settings, _ = ServeSettings.load(flags={}, environment={}, file=tmp_path / name)
    assert (settings.workers, settings.annotate, settings.probe_interval_s) == (
        ("http://a:1", "http://b:1/v"),
        False,
        0.5,
    )


def test_an_empty_yaml_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    settings, _ = ServeSettings.load(flags=WORKERS, environment={}, file=tmp_path / "a.yaml")
    assert settings == ServeSettings(workers=("http://a:1",))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.toml", "port = ", "valid TOML"),
        ("a.yaml", "port: [", "valid YAML"),
        ("a.toml", "port = " + "[" * 10_000, "valid TOML"),
        ("a.yaml", "[" * 10_000, "valid YAML"),
        ("a.yaml", "port: 2001-99-99", "valid YAML"),
        ("a.yaml", "port: " + "9" * 5_000, "valid YAML"),
        ("a.yaml", "- port", "a table of keys and values"),
        ("a.json", "{}", "ends in .toml, .yaml or .yml"),
        ("a.toml", None, "a readable file"),
    ],
)
def test_unfit_files_are_refused(tmp_path: Path, name: str, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(SettingsError, match=words) as refused:
        ServeSettings.load(flags=WORKERS, environment={}, file=tmp_path / name)
    assert (refused.value.key, refused.value.value) == ("config", str(tmp_path / name))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (r'host: "a\0b"', r"host = 'a\\x00b'.*UTF-8 without NUL"),
        (r'tls_cert: "\ud800"', r"tls_cert = '\\ud800'.*UTF-8 without NUL"),
        (r'workers: ["http://a:1", "http://b:1/\ud800"]', r"workers = .*UTF-8 without NUL"),
        ("port: 0x" + "f" * 5_000, "port = <20000 bits>"),
        ("host:\n  - &a0 [x]\n" + "".join(f"  - &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40)), "host = "),
    ],
)
def test_odd_values_are_refused_in_few_words(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=words) as refused:
        ServeSettings.load(flags={}, environment={}, file=file)
    assert len(str(refused.value)) < 10_000


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("port", "70000", "a whole number from 0 to 65535"),
        ("port", "http", "a whole number from 0 to 65535"),
        ("host", "", "a text that is not empty"),
        ("policy", "best", "one of kv_aware, least_outstanding, prefix_aware, random, round_robin"),
        ("workers", "a:1", "one or more of: " + URL_RANGE),
        ("workers", "ftp://a", "one or more of: " + URL_RANGE),
        ("workers", "http://user@a", "one or more of: " + URL_RANGE),
        ("workers", "http://a:1#engine=llama", "one or more of: " + URL_RANGE),
        ("workers", "", "one or more of: " + URL_RANGE),
        ("memory_budget", "much", "a size like 256MiB (B, kB, MB, GB, KiB, MiB, GiB)"),
        ("memory_budget", "-1", "a size like 256MiB (B, kB, MB, GB, KiB, MiB, GiB)"),
        ("concurrency_threshold", "0", "a whole number from 1 to 1024 or null"),
        ("first_byte_timeout_s", "-1", "a number from 0.001 to 86400 or null"),
        ("idle_timeout_s", "0", "a number from 0.01 to 86400 or null"),
        ("max_in_flight", "0", "a whole number from 1 to 1000000 or null"),
        ("worker_caps", "http://a:1", "one or more of: a worker and a number, URL=N"),
        ("worker_caps", "http://a:1=many", "one or more of: a worker and a number, URL=N"),
        ("max_queued", "-1", "a whole number from 0 to 1000000"),
        ("queue_timeout_s", "0", "a number from 0.001 to 3600"),
        ("retry_budget", "20", "a number from 0 to 1"),
        ("slow_start_s", "-1", "a number from 0 to 600"),
        ("annotate", "perhaps", "true or false"),
        ("listen", "8080", "unix:/path, host:port or [IPv6 address]:port or null"),
        ("listen", "unix:relative", "unix:/path, host:port or [IPv6 address]:port or null"),
        ("worker_protocol", "h3", "one of h2, http1"),
        ("max_streams", "0", "a whole number from 1 to 10000"),
    ],
)
def test_a_value_out_of_range_is_named_with_its_range(key: str, value: str, allowed: str) -> None:
    with pytest.raises(SettingsError) as refused:
        ServeSettings.load(flags=WORKERS, environment={f"TRUNKLINE_{key.upper()}": value})
    assert (refused.value.key, refused.value.allowed, refused.value.source) == (key, allowed, "environment")
    assert all(part in str(refused.value) for part in (key, allowed, "environment"))


@pytest.mark.parametrize(("key", "value"), [("prot", "1"), ("", "1"), ("port_", "1")])
def test_an_unknown_key_is_named(key: str, value: str) -> None:
    with pytest.raises(SettingsError, match="one of the keys host, port,") as refused:
        ServeSettings.load(flags=WORKERS, environment={f"TRUNKLINE_{key.upper()}": value})
    assert refused.value.key == key


def test_no_worker_is_refused() -> None:
    with pytest.raises(SettingsError) as refused:
        ServeSettings.load(flags={}, environment={})
    assert (refused.value.key, refused.value.source) == ("workers", "default")


def endpoints_file(folder: Path, variant: str) -> Path:
    file = folder / "trunkline.toml"
    worker = '[[endpoints.variants.workers]]\nurl = "http://a:1"\ninstance = "i-1"\n'
    file.write_text(f'[[endpoints]]\nname = "llama-70b"\n[[endpoints.variants]]\nname = "blue"\n{variant}\n{worker}')
    return file


def test_endpoints_are_tables_of_a_file_and_bring_their_workers(tmp_path: Path) -> None:
    text = 'routing_strategy = "PREFIX_AWARE"\nprefix_length = 4096\nconcurrency_threshold = 40\nweight = 0'
    settings, sources = ServeSettings.load(flags={}, environment={}, file=endpoints_file(tmp_path, text))
    [variant] = settings.endpoints[0].variants
    assert (settings.endpoints[0].name, variant.name, variant.weight) == ("llama-70b", "blue", 0)
    assert (variant.routing_strategy, variant.prefix_length, variant.concurrency_threshold) == (
        "PREFIX_AWARE",
        4096,
        40,
    )
    assert (variant.workers[0].url, variant.workers[0].instance, variant.workers[0].component) == (
        "http://a:1",
        "i-1",
        None,
    )
    assert (settings.workers, sources["endpoints"].endswith(".toml")) == ((), True)


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ('routing_strategy = "PREFIX_AWARE"', "PREFIX_AWARE needs prefix_length"),
        ('routing_strategy = "PREFIX_AWARE"\nprefix_length = 4096', "PREFIX_AWARE needs prefix_length"),
        ("prefix_length = 4096\nconcurrency_threshold = 10", "the others take neither"),
        (
            'routing_strategy = "PREFIX_AWARE"\nprefix_length = 1023\nconcurrency_threshold = 1',
            r"variants\[0\].prefix_length",
        ),
        (
            'routing_strategy = "PREFIX_AWARE"\nprefix_length = 1024\nconcurrency_threshold = 1025',
            "concurrency_threshold",
        ),
        ('routing_strategy = "BEST"', "BEST"),
        ("weight = -1", "weight"),
        ("wait = 1", "unknown field `wait`"),
    ],
)
def test_an_unfit_endpoint_is_refused_at_its_place(tmp_path: Path, variant: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as refused:
        ServeSettings.load(flags={}, environment={}, file=endpoints_file(tmp_path, variant))
    assert refused.value.key == "endpoints"


def test_endpoints_cannot_be_a_line_of_the_environment() -> None:
    with pytest.raises(SettingsError, match="a table with the keys name, variants"):
        ServeSettings.load(flags=WORKERS, environment={"TRUNKLINE_ENDPOINTS": "llama"})


def test_what_kubernetes_says_of_a_service_named_trunkline_is_no_setting() -> None:
    environment = {
        "TRUNKLINE_SERVICE_HOST": "10.0.0.1",
        "TRUNKLINE_SERVICE_PORT": "8080",
        "TRUNKLINE_SERVICE_PORT_HTTP": "8080",
        "TRUNKLINE_PORT": "tcp://10.0.0.1:8080",
        "TRUNKLINE_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "TRUNKLINE_PORT_8080_TCP_ADDR": "10.0.0.1",
        "TRUNKLINE_ADMIN_SERVICE_HOST": "10.0.0.2",
        "TRUNKLINE_ADMIN_PORT": "tcp://10.0.0.2:8081",
    }
    settings, sources = ServeSettings.load(flags=WORKERS, environment=environment)
    assert (settings.port, settings.admin_port) == (8080, 8081)
    assert "environment" not in sources.values()


@pytest.mark.parametrize("settings", [ServeSettings, MockWorkerSettings])
def test_every_setting_has_a_meaning_a_flag_and_a_range(settings: type[ServeSettings | MockWorkerSettings]) -> None:
    flags = set()
    for field in settings.fields():
        assert field.help.endswith("]")
        assert field.allowed
        flags.add(field.flag)
        if field.name != "workers":
            assert field.parse(field.default, source="default") == field.default
    assert len(flags) == len(list(settings.fields()))


def test_the_defaults_of_the_command_are_those_of_the_library() -> None:
    library = inspect.signature(Gateway).parameters
    command = {field.name: field.default for field in ServeSettings.fields()}
    apart = {
        "workers",
        "worker_caps",
        "max_body",
        "max_header",
        "admin_port",
        "endpoints",
        "idle_timeout_s",
        "tokenizers",
    }
    shared = library.keys() & command.keys() - apart
    assert {"host", "port", "threads", "connect_timeout_s", "annotate"} < shared
    assert {name: library[name].default for name in shared} == {name: command[name] for name in shared}
    router = inspect.signature(Router).parameters
    shared = router.keys() & command.keys() - {"memory_budget", "events_budget"}
    assert {"policy", "replicas", "prefix_length"} < shared
    assert {name: router[name].default for name in shared} == {name: command[name] for name in shared}


def test_files_of_the_settings_are_those_that_are_set() -> None:
    settings, _ = ServeSettings.load(flags=WORKERS | {"tls_cert": "a.pem", "api_keys_file": "keys"}, environment={})
    assert settings.files == {"tls_cert": "a.pem", "api_keys_file": "keys"}
    assert set(FILES) <= {field.name for field in ServeSettings.fields()}


@pytest.mark.parametrize(
    "url",
    [
        "https://a",
        "HTTP://A:1/",
        "unix:/run/a.sock",
        "unix:/run/a.sock:/prefix",
        "http://[::1]:8",
        "http://a:1#pool=new",
        "http://a:1#engine=vllm&rank=3&events=tcp://*:5557&replay=tcp://b:5558",
    ],
)
def test_workers_are_urls_of_every_kind(url: str) -> None:
    assert ServeSettings.load(flags={"workers": (url,)}, environment={})[0].workers == (url,)
