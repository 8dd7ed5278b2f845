//! Times of a log, and a clock that goes on where they jump.

use jiff::Timestamp;
use jiff::civil::{DateTime, date};
use serde_json::Value;

/// Steps back of up to this are the order in which a server got to write its lines.
const DISORDER_S: f64 = 60.0;
/// Longer pauses are taken out.
const PAUSE_S: f64 = 3600.0;
/// What is left of a jump.
const STEP_S: f64 = 1.0;

/// A time as loggers write it: a number of seconds (of milliseconds, if above 10^11), also as a string, or ISO 8601.
pub(super) fn seconds(value: &Value) -> Option<f64> {
    let number = match value {
        Value::String(text) => match text.parse::<f64>() {
            Ok(number) => number,
            Err(_) => return iso(text),
        },
        other => other.as_f64()?,
    };
    number.is_finite().then_some(if number > 1e11 { number / 1000.0 } else { number })
}

fn iso(text: &str) -> Option<f64> {
    let whole = |timestamp: Timestamp| timestamp.as_millisecond() as f64 / 1000.0;
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Some(whole(timestamp));
    }
    // Without an offset: only differences count.
    let local: DateTime = text.parse().ok()?;
    Some(whole(local.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp()))
}

/// Seconds since the start of a year of `11-30` and `12:34:56`, as vLLM writes them.
pub(super) fn of_year(day: &str, clock: &str) -> Option<f64> {
    let (month, day) = day.split_once('-')?;
    // A leap year has all days.
    let day = date_of(month.parse().ok()?, day.parse().ok()?)?;
    let parts: Vec<f64> = clock.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [hours, minutes, seconds] = parts[..] else { return None };
    let at_s = f64::from(day) * 86_400.0 + hours * 3600.0 + minutes * 60.0 + seconds;
    at_s.is_finite().then_some(at_s)
}

fn date_of(month: i8, day: i8) -> Option<i16> {
    let valid = jiff::civil::Date::new(2000, month, day).ok()?;
    Some(valid.day_of_year() - date(2000, 1, 1).day_of_year())
}

/// The times of one log as seconds that never jump.
///
/// A step back of more than a minute and a pause of more than an hour become one second: clocks are set, machines sleep, logs are put
/// together in any order. A request without a time arrives with the one before it.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// What is added to times of the log.
    shift_s: f64,
    latest_s: Option<f64>,
    /// Steps and pauses that were taken out.
    pub(crate) jumps: u64,
    /// Requests without a time.
    pub(crate) missing: u64,
}

impl Clock {
    /// The time of the next request; `None` if the log has told none yet. The first one is 0.
    pub(crate) fn at(&mut self, told_s: Option<f64>) -> Option<f64> {
        let Some(told_s) = told_s else {
            self.missing += 1;
            return self.latest_s;
        };
        let Some(latest_s) = self.latest_s else {
            self.shift_s = -told_s;
            self.latest_s = Some(0.0);
            return self.latest_s;
        };
        let mut at_s = told_s + self.shift_s;
        if !(latest_s - DISORDER_S..=latest_s + PAUSE_S).contains(&at_s) {
            self.jumps += 1;
            at_s = latest_s + STEP_S;
            self.shift_s = at_s - told_s;
        }
        self.latest_s = Some(latest_s.max(at_s));
        Some(at_s.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_in_many_forms() {
        let at = |json: &str| seconds(&serde_json::from_str(json).unwrap());
        assert_eq!(at("12.5"), Some(12.5));
        assert_eq!(at("1700000000500"), Some(1_700_000_000.5));
        assert_eq!(at("\"1700000000\""), Some(1_700_000_000.0));
        assert_eq!(at("\"1970-01-02T00:00:00+01:00\""), Some(82_800.0));
        assert_eq!(at("\"1970-01-02 00:00:01\""), Some(86_401.0));
        assert_eq!(at("\"yesterday\""), None);
        assert_eq!(
            of_year("03-01", "00:00:02").unwrap() - of_year("02-28", "00:00:00").unwrap(),
            2.0 * 86_400.0 + 2.0
        );
        assert_eq!(of_year("13-01", "00:00:02"), None);
        assert_eq!(of_year("12-01", "00:nan:02"), None);
    }

    #[test]
    fn a_clock_that_jumps_goes_on_by_a_second() {
        let mut clock = Clock::default();
        assert_eq!(clock.at(None), None);
        let told = [100.0, 110.0, 105.0, 1e9, 1e9 + 2.0, 50.0, 51.0];
        let seen: Vec<f64> = told.iter().filter_map(|&told| clock.at(Some(told))).collect();
        assert_eq!(seen, [0.0, 10.0, 5.0, 11.0, 13.0, 14.0, 15.0]);
        assert_eq!((clock.at(None), clock.jumps, clock.missing), (Some(15.0), 2, 2));
    }
}
