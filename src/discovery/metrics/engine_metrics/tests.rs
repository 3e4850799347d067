//! Metrics pages of each engine, in the forms their versions use.

use super::*;

fn read(page: &str) -> EnginePage {
    PageReader::default().read(page.as_bytes()).unwrap_or_else(|| panic!("nothing in {page}"))
}

fn load(page: &EnginePage) -> (Option<f32>, Option<f32>, Option<f32>) {
    (page.waiting, page.running, page.kv_utilization)
}

#[test]
fn vllm_metrics_are_read_by_new_and_old_names() {
    let page = "# TYPE vllm:num_requests_running gauge\n\
        vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n\
        vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2.0\n\
        vllm:gpu_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.9\n\
        vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.25\n\
        vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"7000\",x=\"None\"} 1.0\n\
        vllm:prefix_cache_queries_total{engine=\"0\"} 1000\n\
        vllm:prefix_cache_hits_total{engine=\"0\"} 640\n\
        vllm:generation_tokens_total{engine=\"0\"} 77\n\
        process_start_time_seconds 1.7632e9\n";
    let new = read(page);
    assert_eq!(load(&new), (Some(2.0), Some(3.0), Some(0.25)), "the new name wins");
    assert_eq!((new.details.block_size, new.details.blocks), (Some(16), Some(7000)));
    assert_eq!(new.details.capacity_tokens(), Some(112_000));
    assert_eq!(new.prefix_cache, Some((640, 1000)));
    assert_eq!(new.details.started_at, Some(1.7632e9));
    assert_eq!((new.engine, new.work), (Some(Engine::Vllm), Some(77.0)));
    assert_eq!(new.details.prefix_caching, None);
    for (value, expected) in [("True", Some(true)), ("False", Some(false)), ("None", None)] {
        let labels = format!("block_size=\"16\",enable_prefix_caching=\"{value}\"");
        let details = read(&page.replace("block_size=\"16\"", &labels)).details;
        assert_eq!((details.prefix_caching, details.blocks), (expected, Some(7000)));
    }
    let old = read(&page.replace("vllm:kv_cache", "vllm:other"));
    assert_eq!(old.kv_utilization, Some(0.9));
}

#[test]
fn engines_of_one_page_are_added_up() {
    let page = read(
        "vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} 4\n\
         vllm:num_requests_waiting{engine=\"0\"} 1\nvllm:num_requests_waiting{engine=\"1\"} 0\n\
         vllm:kv_cache_usage_perc{engine=\"0\"} 0.2\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.6\n",
    );
    assert_eq!((page.waiting, page.running), (Some(1.0), Some(7.0)));
    assert!(page.kv_utilization.is_some_and(|share| (share - 0.4).abs() < 1e-6));
    let ranks = read(
        "sglang:num_running_reqs{tp_rank=\"0\",pp_rank=\"0\"} 5\n\
         sglang:num_running_reqs{tp_rank=\"1\",pp_rank=\"0\"} 5\n\
         sglang:num_queue_reqs{tp_rank=\"0\"} 2\nsglang:token_usage{tp_rank=\"0\"} 0.5\n\
         sglang:cache_config_info{page_size=\"64\",num_pages=\"100\"} 1\n",
    );
    assert_eq!(load(&ranks), (Some(2.0), Some(5.0), Some(0.5)), "ranks repeat each other");
    assert_eq!(ranks.details.capacity_tokens(), Some(6400));
}

#[test]
fn dp_attention_reads_first_rank_per_group() {
    let page = |order: [usize; 4]| {
        let series = [("0", "0", 1), ("1", "0", 1), ("4", "1", 30), ("5", "1", 30)];
        let line = |index: usize| {
            let (tensor, data, running) = series[index];
            format!(
                "sglang:num_running_reqs{{tp_rank=\"{tensor}\",dp_rank=\"{data}\"}} {running}\n\
                 sglang:num_queue_reqs{{tp_rank=\"{tensor}\",dp_rank=\"{data}\"}} 2\n"
            )
        };
        order.map(line).concat()
    };
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
        assert_eq!(load(&read(&page(order))), (Some(4.0), Some(31.0), None), "{order:?}");
    }
}

#[test]
fn priorities_are_counted_once() {
    let page = read(
        "sglang:num_running_reqs{priority=\"\"} 10\nsglang:num_running_reqs{priority=\"1\"} 7\n\
         sglang:num_running_reqs{priority=\"2\"} 3\nsglang:num_queue_reqs{priority=\"1\"} 4\n\
         sglang:num_queue_reqs{priority=\"\"} 4\n",
    );
    assert_eq!(load(&page), (Some(4.0), Some(10.0), None));
}

#[test]
fn huge_counter_saturates() {
    let page = read("vllm:num_requests_waiting 1e39\nvllm:num_requests_running +Inf\n");
    assert_eq!(load(&page), (Some(f32::MAX), None, None));
}

#[test]
fn metrics_of_other_engines_are_read() {
    let trt = read(
        "trtllm_num_requests_waiting 1\ntrtllm_num_requests_running 2\n\
         trtllm_kv_cache_utilization 0.5\ntrtllm_kv_cache_tokens_per_block 32\n\
         trtllm_kv_cache_max_blocks 10\n",
    );
    assert_eq!(load(&trt), (Some(1.0), Some(2.0), Some(0.5)));
    assert_eq!(trt.details.capacity_tokens(), Some(320));
    let triton = read(
        "nv_trt_llm_request_metrics{model=\"m\",request_type=\"waiting\",version=\"1\"} 4\n\
         nv_trt_llm_request_metrics{model=\"m\",request_type=\"scheduled\",version=\"1\"} 6\n\
         nv_trt_llm_request_metrics{model=\"m\",request_type=\"max\",version=\"1\"} 512\n\
         nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\"} 0.125\n\
         nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\"} 64\n\
         nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"used\"} 11\n\
         nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\"} 100\n",
    );
    assert_eq!(load(&triton), (Some(4.0), Some(6.0), Some(0.125)));
    assert_eq!(triton.details.capacity_tokens(), Some(6400));
    let tgi = read("tgi_queue_size 3\ntgi_batch_current_size 8\n");
    assert_eq!(load(&tgi), (Some(3.0), Some(8.0), None));
    let cpp = read("llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n");
    assert_eq!(load(&cpp), (Some(0.0), Some(1.0), None));
    assert_eq!(cpp.engine, Some(Engine::LlamaCpp));
}

#[test]
fn non_finite_value_is_unknown_and_page_without_load_is_none() {
    let page = read("vllm:num_requests_running NaN\nvllm:num_requests_waiting 1\n");
    assert_eq!((page.waiting, page.running), (Some(1.0), None));
    let reader = PageReader::default();
    assert_eq!(reader.read(b"process_start_time_seconds 5\n"), None);
    assert_eq!(reader.read(b"<html>not found</html>"), None);
    assert_eq!(reader.read(b"vllm:num_requests_running +Inf\n"), None);
}

#[test]
fn newest_adapter_line_wins() {
    let page = read(
        "vllm:num_requests_running 0\n\
         vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"old\",\
         waiting_lora_adapters=\"\"} 1.5e9\n\
         vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"sql, chat\",\
         waiting_lora_adapters=\"law\"} 1.6e9\n",
    );
    let adapters = page.details.adapters.unwrap();
    assert_eq!(adapters.running, ["sql", "chat"].map(Box::<str>::from));
    assert_eq!((adapters.waiting, adapters.max), (vec!["law".into()], Some(4)));
}

#[test]
fn llamacpp_without_metrics_is_read_by_its_slots() {
    let slots = read_slots(br#"[{"id":0,"is_processing":true},{"id":1,"is_processing":false}]"#);
    assert_eq!(load(&slots.unwrap()), (Some(0.0), Some(1.0), None));
    let full = read_slots(br#"[{"id":0,"is_processing":true}]"#).unwrap();
    assert_eq!(load(&full), (None, Some(1.0), None), "the queue length is not reported");
    assert_eq!(read_slots(b"{}"), None);
    assert_eq!(read_slots(br#"[{"id":0}]"#), None);
    let props = br#"{"total_slots":4,"default_generation_settings":{"n_ctx":2048}}"#;
    assert_eq!(read_props(props), Some(8192));
    assert_eq!(read_props(b"nonsense"), None);
}

#[test]
fn reading_a_page_allocates_nothing() {
    let reader = PageReader::default();
    let page = "vllm:num_requests_running{engine=\"0\"} 3\n# HELP x y\nother{le=\"1\"} 2\n\
        vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"7000\"} 1\n\
        vllm:prefix_cache_hits_total 5\nvllm:prefix_cache_queries_total 5\n"
        .repeat(50);
    let counted = allocation_counter::measure(|| {
        assert!(reader.read(page.as_bytes()).is_some());
    });
    assert_eq!(counted.count_total, 0);
}

#[test]
fn adapter_names_are_bounded_and_printable() {
    let (long, many) = ("x".repeat(257), (0..300).map(|number| format!("a{number}")));
    let many = many.collect::<Vec<_>>().join(",");
    let page = read(&format!(
        "vllm:num_requests_running 0\n\
         vllm:lora_requests_info{{max_lora=\"4\",running_lora_adapters=\"sql,{long},b\u{1b}[2J,sql\",\
         waiting_lora_adapters=\"{many}\"}} 1.5e9\n"
    ));
    let adapters = page.details.adapters.unwrap();
    assert_eq!(adapters.running, ["sql"].map(Box::<str>::from));
    assert_eq!((adapters.waiting.len(), adapters.dropped), (256, 2 + 44));
}
