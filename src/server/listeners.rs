//! The listeners of the data plane, built from the configuration.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use penstock_config::{Config, ListenAddress, Listener};
use pingora::listeners::{L4BufferSettings, ListenerConfig};
use socket2::{Domain, Socket, Type};

/// Responses up to this size are sent in one write together with their head.
const WRITE_BUFFER: usize = 2048;

/// All listen addresses, including the admin port's.
pub(super) fn addresses(config: &Config) -> Vec<ListenAddress> {
    let data = config.server.listen.iter().map(|listener| listener.address.clone());
    data.chain(config.admin.listen.map(ListenAddress::Tcp)).collect()
}

/// The files of the listeners' Unix sockets.
pub(super) fn socket_files(config: &Config) -> Vec<PathBuf> {
    let files = config.server.listen.iter().filter_map(|listener| match &listener.address {
        ListenAddress::Unix(path) => Some(path.clone()),
        ListenAddress::Tcp(_) => None,
    });
    files.collect()
}

/// Checks that penstock can listen on an address.
///
/// # Errors
/// The system error.
pub(crate) fn try_listen(address: &ListenAddress) -> std::io::Result<()> {
    match address {
        ListenAddress::Tcp(address) => try_bind(*address),
        ListenAddress::Unix(path) => check_socket(path),
    }
}

// Bound, but not listening: a client that connects now is refused instead of reset later.
fn try_bind(address: SocketAddr) -> std::io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())
}

/// Checks that a Unix socket can be bound: a stale socket is replaced; a socket in use or another
/// file is an error.
fn check_socket(path: &Path) -> std::io::Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        let folder = path.parent().unwrap_or(Path::new("/"));
        return std::fs::metadata(folder).map(drop);
    };
    if !metadata.file_type().is_socket() || UnixStream::connect(path).is_ok() {
        return Err(std::io::ErrorKind::AddrInUse.into());
    }
    Ok(())
}

pub(super) fn listeners(config: &Config) -> impl Iterator<Item = ListenerConfig> {
    config.server.listen.iter().map(listener)
}

fn listener(listener: &Listener) -> ListenerConfig {
    let socket = match &listener.address {
        ListenAddress::Tcp(address) => ListenerConfig::tcp(address.to_string()),
        ListenAddress::Unix(path) => ListenerConfig::uds(path.to_string_lossy())
            .permissions(Permissions::from_mode(listener.mode)),
    };
    socket.l4_buffer(L4BufferSettings::new(0, WRITE_BUFFER))
}
