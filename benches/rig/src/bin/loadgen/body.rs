//! Chat bodies of an exact size: prose, or an image in base64.

const WORDS: [&str; 10] = [
    "the ",
    "quick ",
    "brown ",
    "fox ",
    "jumps ",
    "over ",
    "a ",
    "lazy ",
    "dog, ",
    r#"then \"pauses\".\n"#,
];
const IMAGE: &str = r#"[{"type":"text","text":"What is in this image?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,"#;
const IMAGE_END: &str = r#""}}]}]}"#;
/// The text right before the prompt.
pub(crate) const PROMPT: &str = r#"{"role":"user","content":""#;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A chat body of `size` bytes.
pub(crate) fn chat(size: usize, is_stream: bool, is_image: bool) -> String {
    let stream = if is_stream { r#","stream":true"# } else { "" };
    let front = format!(
        r#"{{"model":"mock-model","max_tokens":256,"temperature":0.7{stream},"messages":[{{"role":"system","content":"You are a helpful assistant."}},{{"role":"user","content":"#
    );
    if is_image {
        let length = size.saturating_sub(front.len() + IMAGE.len() + IMAGE_END.len());
        return format!("{front}{IMAGE}{}{IMAGE_END}", noise(length));
    }
    let end = r#""}]}"#;
    let length = size.saturating_sub(front.len() + 1 + end.len());
    format!("{front}\"{}{end}", prose(length))
}

fn prose(length: usize) -> String {
    let mut text = String::with_capacity(length);
    let mut index = 0;
    loop {
        let word = WORDS[index * 7 % WORDS.len()];
        if text.len() + word.len() > length {
            break;
        }
        text.push_str(word);
        index += 1 + index / 10 % 3;
    }
    text.extend(std::iter::repeat_n('.', length - text.len()));
    text
}

fn noise(length: usize) -> String {
    let mut state = 0x0139_408D_CBBF_7A45_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(BASE64[usize::try_from(state >> 58).expect("six bits")])
    };
    std::iter::repeat_with(next).take(length).collect()
}

#[cfg(test)]
mod tests {
    use super::chat;

    #[test]
    fn bodies_are_json_of_the_requested_size() {
        for (size, is_image) in [(300, false), (32 << 10, false), (1 << 20, true)] {
            let body = chat(size, true, is_image);
            assert_eq!(body.len(), size, "image {is_image}");
            let parsed: serde_json::Value = serde_json::from_str(&body).unwrap();
            assert_eq!(parsed["stream"], true, "image {is_image}");
        }
    }
}
