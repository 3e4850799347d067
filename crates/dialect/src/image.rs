//! Images in requests: data URLs, and detection of the media type from the first bytes. Nothing
//! beyond these bytes is decoded, and no address is ever fetched.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::conversation::ImageSource;
use super::error::ConvertError;
use super::json::Text;

/// The number of base64 characters that contain the bytes for detection of the media type.
const START: usize = 16;

/// Returns an image that the request carries as bare base64.
pub(super) fn of_base64(base64: Text<'_>) -> Result<ImageSource<'_>, ConvertError> {
    let media = media_type(&base64).ok_or(ConvertError::Invalid {
        field: "images",
        expected: "a list of JPEG, PNG, WebP or GIF files in base64",
    })?;
    Ok(ImageSource::Inline { media: media.into(), base64 })
}

/// Returns the image of an `image_url`.
pub(super) fn of_url(url: Text<'_>) -> ImageSource<'_> {
    match split_data_url(&url) {
        None => ImageSource::Address(url),
        Some((media, base64)) => {
            let known = media_type(base64).unwrap_or("image/png");
            let media = if media.is_empty() { known } else { media };
            ImageSource::Inline { media: media.to_owned().into(), base64: base64.to_owned().into() }
        }
    }
}

/// Splits `data:<media>;base64,<data>` into the media type and the data.
fn split_data_url(url: &str) -> Option<(&str, &str)> {
    let (head, data) = url.strip_prefix("data:")?.split_once(',')?;
    let media = head.strip_suffix(";base64")?;
    Some((media.split(';').next().unwrap_or(media), data))
}

/// Detects the media type from the first bytes.
fn media_type(base64: &str) -> Option<&'static str> {
    let start = base64.get(..base64.len().min(START))?;
    // Four characters encode three bytes; a cut group would be an error.
    let whole_groups = start.get(..start.len() / 4 * 4)?;
    let bytes = STANDARD.decode(whole_groups).ok()?;
    match bytes.as_slice() {
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}
