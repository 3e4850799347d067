//! Ollama's own API beyond chats: commands and uploads that go to every Ollama backend, and the
//! pages about models. Beside the spine in `proxy`, whose attempts it uses.

pub(crate) mod broadcast;
mod model_page;
pub(crate) mod pages;
pub(crate) mod show;
pub(crate) mod usage;
pub(crate) mod version;
