#!/usr/bin/perl
# Log in with Perl: login.pl NAME PASSWORD ADDRESS
#
# THROTTLER_URL is the URL of throttler serve, THROTTLER_API_KEY a key of it.
use strict;
use warnings;
use Encode qw(decode);
use HTTP::Tiny;
use JSON::PP qw(decode_json encode_json);

my $api  = $ENV{THROTTLER_URL} // 'http://127.0.0.1:4183';
my $http = HTTP::Tiny->new(
    timeout         => 2,
    default_headers => {
        'Authorization' => "Bearer $ENV{THROTTLER_API_KEY}",
        'Content-Type'  => 'application/json',
    },
);

# is_cross_site returns whether a browser sent this from a page of another site. Its
# argument has CGI's names, as PSGI's does. Refuse such a request before it counts: the
# visitor does not know of it, and it would lock them out.
sub is_cross_site {
    my ($env) = @_;
    if (my $site = $env->{HTTP_SEC_FETCH_SITE}) {
        return $site ne 'same-origin' && $site ne 'none';
    }
    my $origin = $env->{HTTP_ORIGIN} or return 0;    # of browsers before 2023
    return $origin =~ s{^[^:]*://}{}r ne ($env->{HTTP_HOST} // '');
}

# ask returns the answer to a question, or undef if there is none in time.
sub ask {
    my ($path, %question) = @_;
    my $response = $http->post($api . $path, { content => encode_json(\%question) });
    return decode_json($response->{content}) if $response->{success};
    warn "throttler: $response->{status} $response->{content}\n";
    return undef;
}

# password_is_right stands for your own accounts, with hashed passwords.
sub password_is_right {
    my ($name, $password) = @_;
    return $name eq 'alice' && $password eq 'correct horse';
}

sub log_in {
    my ($env, $name, $password, $address) = @_;
    return 'Please use our own form.' if is_cross_site($env);
    my $attempt = ask('/v1/login/begin', name => $name, address => $address)
        or return 'Please try again later.';    # fails closed
    if ($attempt->{status} ne 'authorized') {    # do not look at the password
        return sprintf '%s (%.0f s)', $attempt->{message}, $attempt->{retry_after};
    }
    if (!password_is_right($name, $password)) {
        ask('/v1/login/fail', attempt => $attempt->{attempt});
        return 'Wrong name or password.';
    }
    ask('/v1/login/succeed', attempt => $attempt->{attempt});
    return 'Welcome!';
}

# What comes from outside is bytes. What is no UTF-8 becomes U+FFFD.
binmode STDOUT, ':encoding(UTF-8)';
print log_in(\%ENV, map { decode('UTF-8', $_) } @ARGV), "\n";
