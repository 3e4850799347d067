//! Ollama's routes besides its operations: views of the fleet, and the commands that manage models.
//! docs/reference/http-api.md has the table.

/// A command that changes or publishes the models of Ollama backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelCommand {
    /// Downloads a model.
    Pull,
    /// Uploads a model to a registry.
    Push,
    /// Makes a model from another one or from files.
    Create,
    /// Gives a model a second name.
    Copy,
    /// Removes a model and its files.
    Delete,
}

/// One of Ollama's routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OllamaRoute<'a> {
    /// The version of the Ollama API.
    Version,
    /// The status of Ollama's cloud: whether its models can be used.
    Status,
    /// The models of the fleet.
    Tags,
    /// The models in memory, merged by name.
    Loaded,
    /// The models in memory, per backend.
    LoadedDetails,
    /// The details of one model.
    Show,
    /// A command that manages models.
    Command(ModelCommand),
    /// A file of a model that is to be created, by its digest.
    Blob(&'a str),
}

/// One row of the table.
#[derive(Debug)]
pub struct OllamaRow {
    /// The route that the row describes.
    pub route: OllamaRoute<'static>,
    /// Its path; a blob's ends before the digest.
    pub path: &'static str,
    /// The methods it takes, as an `Allow` field lists them.
    pub methods: &'static str,
    /// Its effect, for docs/reference/http-api.md.
    pub what: &'static str,
}

const fn row(
    route: OllamaRoute<'static>,
    path: &'static str,
    methods: &'static str,
    what: &'static str,
) -> OllamaRow {
    OllamaRow { route, path, methods, what }
}

const READ: &str = "GET, HEAD";
const POST: &str = "POST";

/// Ollama's routes besides its operations, in the order of docs/reference/http-api.md.
pub const OLLAMA_ROUTES: &[OllamaRow] = &[
    row(
        OllamaRoute::Version,
        "/api/version",
        READ,
        "the lowest version of the Ollama backends; `0.14.0` where there are none",
    ),
    row(
        OllamaRoute::Status,
        "/api/status",
        READ,
        "that signing in to Ollama's cloud is off here; cloud models that a backend lists work as others do",
    ),
    row(OllamaRoute::Tags, "/api/tags", READ, "every known model and every alias, of all engines"),
    row(
        OllamaRoute::Loaded,
        "/api/ps",
        READ,
        "the models in memory; one that several backends have is one item, its sizes added up",
    ),
    row(
        OllamaRoute::LoadedDetails,
        "/api/ps_details",
        READ,
        "the same per backend, with `backend`, `original_name` and `context_length`",
    ),
    row(
        OllamaRoute::Show,
        "/api/show",
        POST,
        "one model: from an Ollama backend that has it, else made from what is known of it",
    ),
    row(
        OllamaRoute::Command(ModelCommand::Pull),
        "/api/pull",
        POST,
        "all Ollama backends download the model",
    ),
    row(
        OllamaRoute::Command(ModelCommand::Create),
        "/api/create",
        POST,
        "all Ollama backends create the model",
    ),
    row(
        OllamaRoute::Command(ModelCommand::Copy),
        "/api/copy",
        POST,
        "the Ollama backends that have the model copy it",
    ),
    row(
        OllamaRoute::Command(ModelCommand::Delete),
        "/api/delete",
        "DELETE",
        "the Ollama backends that have the model delete it",
    ),
    row(
        OllamaRoute::Command(ModelCommand::Push),
        "/api/push",
        POST,
        "one Ollama backend that has the model publishes it",
    ),
    row(
        OllamaRoute::Blob(""),
        "/api/blobs/",
        "HEAD, POST",
        "a file for `/api/create`: whether all Ollama backends have it; its upload to all of them",
    ),
];

impl<'a> OllamaRoute<'a> {
    /// Returns the route of a path, if it is one.
    pub fn of(path: &'a str) -> Option<Self> {
        if let Some(digest) = path.strip_prefix("/api/blobs/") {
            return (!digest.is_empty()).then_some(Self::Blob(digest));
        }
        OLLAMA_ROUTES.iter().find(|row| row.path == path).map(|row| row.route)
    }

    /// Returns the methods it takes, as an `Allow` field lists them without CORS.
    pub fn methods(self) -> &'static str {
        let is_own = |row: &&OllamaRow| match (row.route, self) {
            // One row stands for every digest.
            (OllamaRoute::Blob(_), Self::Blob(_)) => true,
            (one, other) => one == other,
        };
        OLLAMA_ROUTES.iter().find(is_own).map_or("", |row| row.methods)
    }

    /// Returns whether it takes a method; `OPTIONS` is decided by CORS.
    pub fn takes(self, method: &str) -> bool {
        self.methods().split(", ").any(|taken| taken == method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_found_by_their_path() {
        for row in OLLAMA_ROUTES {
            let path = match row.route {
                OllamaRoute::Blob(_) => format!("{}sha256:0", row.path),
                _ => row.path.to_owned(),
            };
            let route = OllamaRoute::of(&path).unwrap();
            assert_eq!(route.methods(), row.methods, "{path}");
            assert!(row.methods.split(", ").all(|method| route.takes(method)), "{path}");
            assert!(!route.takes("PUT") && !route.takes(""), "{path}");
        }
        for unknown in ["/api/blobs/", "/api/tags/", "/api", "/api/Tags"] {
            assert_eq!(OllamaRoute::of(unknown), None, "{unknown}");
        }
    }
}
