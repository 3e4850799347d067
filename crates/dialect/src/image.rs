//! Images in requests: data URLs, and detection of the media type from the first bytes. Nothing
//! beyond these bytes is decoded, and no address is ever fetched.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::conversation::ImageSource;
use super::error::ConvertError;
use super::json::Text;

/// The number of base64 characters that contain the bytes for detection of the media type.
const START: usize = 16;

/// The start of a data URL, in any case.
const SCHEME: &str = "data:";
/// The end of its head, in any case.
const ENCODING: &str = ";base64";

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
        Some((declared, base64)) => of_declared(declared, base64.to_owned().into()),
    }
}

/// Returns an image whose media type the request declares. The first bytes know better: programs
/// declare `application/octet-stream`, or one type for all images, and engines refuse that.
pub(super) fn of_declared<'a>(declared: &str, base64: Text<'a>) -> ImageSource<'a> {
    let media = match media_type(base64.trim_ascii_start()) {
        Some(known) => known.into(),
        None => match declared.to_ascii_lowercase() {
            declared if declared.is_empty() => "image/png".into(),
            declared if declared == "image/jpg" => "image/jpeg".into(),
            declared => declared.into(),
        },
    };
    ImageSource::Inline { media, base64 }
}

/// Splits `data:<media>;base64,<data>` into the media type and the data.
fn split_data_url(url: &str) -> Option<(&str, &str)> {
    let (head, data) = url.split_once(',')?;
    let (scheme, head) = head.split_at_checked(SCHEME.len())?;
    let (media, encoding) = head.split_at_checked(head.len().checked_sub(ENCODING.len())?)?;
    let is_data = scheme.eq_ignore_ascii_case(SCHEME) && encoding.eq_ignore_ascii_case(ENCODING);
    is_data.then(|| (media.split(';').next().unwrap_or(media).trim_ascii(), data))
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

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &str = "iVBORw0KGgoAAAANSUhEUg==";
    const JPEG: &str = "/9j/4AAQSkZJRgABAQ==";

    #[test]
    fn media_type_is_that_of_the_bytes() {
        for (head, data, expected) in [
            ("data:image/png;base64", PNG, "image/png"),
            ("data:image/jpg;base64", JPEG, "image/jpeg"),
            ("data:image/jpg;base64", PNG, "image/png"),
            ("data:application/octet-stream;base64", JPEG, "image/jpeg"),
            ("data:;base64", JPEG, "image/jpeg"),
            ("DATA:IMAGE/PNG;BASE64", PNG, "image/png"),
            ("Data:image/png;charset=utf-8;Base64", PNG, "image/png"),
            ("data:image/jpg;base64", "AAAA", "image/jpeg"),
            ("data:IMAGE/BMP;base64", "AAAA", "image/bmp"),
            ("data:;base64", "AAAA", "image/png"),
            ("data:image/gif;base64", "é", "image/gif"),
        ] {
            let url = format!("{head},{data}");
            let ImageSource::Inline { media, base64 } = of_url(url.into()) else {
                panic!("{head}")
            };
            assert_eq!((&*media, &*base64), (expected, data), "{head}");
        }
    }

    #[test]
    fn everything_else_is_an_address() {
        for url in ["https://x.test/a,b.png", "data:image/svg+xml;utf8,<svg/>", "data:,x", "é,", ""]
        {
            let ImageSource::Address(address) = of_url(url.into()) else { panic!("{url}") };
            assert_eq!(&*address, url);
        }
    }
}
