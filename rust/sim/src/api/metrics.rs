//! The Prometheus text of a worker, with its dialect's names: the part of it that a router reads.

use std::fmt::Write;

use super::Api;
use crate::dialect::Dialect;
use crate::engine::Engine;
use crate::histogram::Histogram;

/// Renders all metrics in the worker's dialect.
pub(crate) fn render(api: &Api) -> String {
    let labels = format!("engine=\"0\",model_name=\"{}\"", escape(&api.model));
    let mut text = Text { out: String::new(), labels };
    match api.dialect {
        Dialect::Vllm => text.vllm(api),
        Dialect::Sglang => {
            text.gauge("sglang:max_total_num_tokens", "Size of the KV cache.", f64::from(api.cache_tokens()));
            text.load(api, ["sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"]);
        }
        Dialect::TrtLlm => text.load(
            api,
            ["trtllm_num_requests_running", "trtllm_num_requests_waiting", "trtllm_kv_cache_utilization"],
        ),
        Dialect::Tgi => text.load(api, ["tgi_batch_current_size", "tgi_queue_size", "tgi_kv_cache_usage"]),
    }
    text.out
}

struct Text {
    out: String,
    labels: String,
}

impl Text {
    fn vllm(&mut self, api: &Api) {
        api.driver.inspect(|engine, ttft| {
            self.engine(engine);
            self.histogram(
                "vllm:time_to_first_token_seconds",
                "Histogram of time to first token in seconds.",
                ttft,
            );
        });
        let blocks = api.driver.inspect(|engine, _| engine.cache().capacity_blocks());
        head(&mut self.out, "vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
        put(
            &mut self.out,
            &format!(
                "vllm:cache_config_info{{block_size=\"{}\",enable_prefix_caching=\"True\",engine=\"0\",\
                 kv_cache_size_tokens=\"{}\",num_gpu_blocks=\"{blocks}\"}} 1.0",
                api.block_size,
                api.cache_tokens()
            ),
        );
    }

    /// What every engine tells: requests that run, requests that wait, the used share of the KV cache.
    fn load(&mut self, api: &Api, [running, waiting, usage]: [&str; 3]) {
        let [run, wait, used] = api.driver.inspect(|engine, _| {
            let cache = engine.cache();
            let used = f64::from(cache.used_blocks()) / f64::from(cache.capacity_blocks());
            [engine.running() as f64, engine.waiting() as f64, used]
        });
        self.gauge(running, "Requests that run.", run);
        self.gauge(waiting, "Requests that wait.", wait);
        self.gauge(usage, "Used share of the KV cache.", used);
    }

    fn engine(&mut self, engine: &Engine) {
        let counters = engine.counters();
        let cache = engine.cache();
        let usage = f64::from(cache.used_blocks()) / f64::from(cache.capacity_blocks());
        self.gauge(
            "vllm:num_requests_running",
            "Number of requests in model execution batches.",
            engine.running() as f64,
        );
        self.gauge(
            "vllm:num_requests_waiting",
            "Number of requests waiting to be processed.",
            engine.waiting() as f64,
        );
        self.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", usage);
        for (name, help, value) in [
            ("vllm:prefix_cache_queries_total", "Prefix cache queries, in tokens.", counters.prompt_tokens),
            ("vllm:prefix_cache_hits_total", "Prefix cache hits, in tokens.", counters.cached_tokens),
            ("vllm:prompt_tokens_total", "Number of prefill tokens processed.", counters.prompt_tokens),
            ("vllm:prompt_tokens_cached_total", "Number of cached prompt tokens.", counters.cached_tokens),
            (
                "vllm:generation_tokens_total",
                "Number of generation tokens processed.",
                counters.generated_tokens,
            ),
        ] {
            head(&mut self.out, name, "counter", help);
            self.sample(name, "", value as f64);
        }
        head(
            &mut self.out,
            "vllm:request_success_total",
            "counter",
            "Count of successfully processed requests.",
        );
        self.sample("vllm:request_success_total", "finished_reason=\"length\"", counters.finished as f64);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        head(&mut self.out, name, "gauge", help);
        self.sample(name, "", value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        head(&mut self.out, name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for (bound_s, count) in histogram.cumulative() {
            self.sample(&bucket, &format!("le=\"{bound_s:?}\""), count as f64);
        }
        self.sample(&bucket, "le=\"+Inf\"", histogram.count() as f64);
        self.sample(&format!("{name}_count"), "", histogram.count() as f64);
        self.sample(&format!("{name}_sum"), "", histogram.sum_s());
    }

    fn sample(&mut self, name: &str, extra_label: &str, value: f64) {
        let comma = if extra_label.is_empty() { "" } else { "," };
        put(&mut self.out, &format!("{name}{{{}{comma}{extra_label}}} {value:?}", self.labels));
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    put(out, &format!("# HELP {name} {help}"));
    put(out, &format!("# TYPE {name} {kind}"));
}

fn put(out: &mut String, line: &str) {
    writeln!(out, "{line}").expect("writing to a string succeeds");
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
